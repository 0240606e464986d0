"""Places where rules and passes of the catalogue fire, in many spellings, each with near misses of its own.

A site draws sizes, axes, constants, operands and a spelling, and returns expressions. What is drawn need not fit any
rule: `sort(x)[2:4]` is no selection, `x ** 3.5` no easy power, a kernel of one place no convolution.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .writer import Scope, Value, Writer


@dataclass
class Operands:
    """What a site is made of: parameters of the function that it stands in, and what is made of them."""

    w: Writer
    scope: Scope
    dtype: str
    params: list[Value] = field(default_factory=list)
    middle: list[str] = field(default_factory=list)

    def __call__(self, *shape: int, dtype: str = "") -> str:
        """The name of an array: a parameter, mostly; or a constant, or one that is made of a parameter."""
        w, dtype = self.w, dtype or self.dtype
        alike = [p for p in self.params if p.shape == shape and p.dtype == dtype]
        how = w.weighted([(6, "new"), (1, "constant"), (1, "made"), (2 if alike else 0, "again")])
        if how == "again":
            return w.one_of(alike).name
        if how == "constant" and self.params:
            return self.bound(f"jnp.asarray(array({shape}, {dtype!r}, {w.rng.randrange(100)}))")
        found = Value(w.fresh("p"), shape, dtype)
        self.params.append(found)
        if how == "made":
            return self.bound(w.one_of(("jnp.tanh({p})", "{p} * 0.5", "1 - {p}", "-{p}")).format(p=found.name))
        return found.name

    def bound(self, text: str) -> str:
        """The name of an expression; now and then the program returns it too."""
        name = self.w.fresh("m")
        self.scope.lines.append(f"{name} = {text}")
        if self.w.chance(0.1):
            self.middle.append(name)
        return name

    def integers(self, n: int, *shape: int) -> str:
        """The name of whole numbers around 0 to n."""
        return self.bound(f"jnp.round({self(*shape)} * {n / 2} + {n / 2 - 0.5}).astype('int32')")

    def regular(self, *shape: int) -> str:
        """Square matrices that are far from singular."""
        return self.bound(
            f"{self(*shape, dtype='float32')} + {self.w.one_of((3.0, -3.5))} * jnp.eye({shape[-1]}, dtype='float32')"
        )

    def one_of(self, *options: str) -> str:
        return self.w.one_of(options)

    def size(self, least: int = 1, most: int = 5) -> int:
        return self.w.rng.randint(least, most)

    def shape(self, least: int = 1, most: int = 3, longest: int = 7) -> tuple[int, ...]:
        return tuple(self.size(1, longest) for _ in range(self.w.rng.randint(least, most)))

    def axis(self, shape: tuple[int, ...]) -> int:
        return self.w.rng.randrange(len(shape)) - (len(shape) if self.w.chance(0.4) else 0)


def _at(o: Operands, x: str, rank: int, axis: int, text: str) -> str:
    """`x[:, text]`, the axis where it belongs."""
    return f"{x}[{', '.join([':'] * (axis % rank) + [text])}]"


# --- orders ------------------------------------------------------------------------------------------------------


def sorts(o: Operands) -> list[str]:
    """Sorts, with payloads and keys, and parts of them."""
    shape = o.shape()
    axis = o.axis(shape)
    x = o(*shape)
    if o.w.chance(0.25):
        x = o.bound(f"jnp.round({x} * 2)")  # ties
    if o.w.chance(0.15):
        x = o.bound(o.one_of("({x} > 0)", "jnp.round({x} * 3).astype('int32')").format(x=x))
    n = shape[axis]
    ordered = o.one_of(
        "jnp.sort({x}, {a})", "jnp.argsort({x}, {a})", "jnp.sort({x}, axis={a}, descending=True)",
        "jnp.argsort({x}, {a}, stable=False)", "jnp.argsort({x}, axis={a}, descending=True)",
        "lax.sort({x}, {b})", "lax.sort(({x}, {y}), {b}, num_keys={k})[1]", "lax.sort(({x}, {y}), {b})[0]",
        "lax.sort_key_val({x}, {y}, {b})[1]", "-jnp.sort(-{x}.astype('float32'), {a})",
    ).format(x=x, y=o(*shape), a=axis, b=axis % len(shape), k=o.size(1, 2))  # fmt: skip
    if o.w.chance(0.4):
        down = f"jnp.argsort({x}, {axis}, descending=True)"
        ordered = o.one_of(f"jnp.sort({x}, {axis})", f"jnp.argsort({x}, {axis})", down)
        return [_at(o, ordered, len(shape), axis, o.one_of("0", "-1", ":2", "-2:", ":1"))]
    k = o.size(1, n)
    part = o.one_of("", f":{k}", f"-{k}:", "0", "-1", f"{k - 1}", f"{k - 1}:{k}", "::2", "1:", f":{k}:2", "::-1")
    if o.w.chance(0.15):
        return [o.one_of(f"jnp.median({x}.astype('float32'), {axis})", f"jnp.lexsort(({x}, {o(*shape)}), axis={axis})")]
    return [_at(o, o.bound(ordered), len(shape), axis, part) if part else ordered]


def extrema(o: Operands) -> list[str]:
    """The place of the largest or smallest, and `top_k`."""
    shape = (*o.shape(0, 2, 4), o.size(3, 40))
    shape = shape if o.w.chance(0.6) else shape[::-1]
    x, axis = o(*shape), o.axis(shape)
    if o.w.chance(0.3):
        x = o.bound(o.one_of("jnp.round({x})", "jnp.round({x}).astype('int32')", "jnp.abs({x})").format(x=x))
    if o.w.chance(0.2):
        return [*(f"lax.top_k({x}, {o.size(1, min(2, shape[-1]))})[{k}]" for k in (0, 1))]
    return [o.one_of(
        f"jnp.argmax({x}, {axis})", f"jnp.argmin({x}, {axis})", f"jnp.argmax({x})", f"jnp.argmin(-{x}, {axis})",
        f"jnp.nanargmax({x}, {axis})", f"lax.argmax({x}, {axis % len(shape)}, 'uint8')",
        f"jnp.take_along_axis({x}, jnp.argmax({x}, {axis}, keepdims=True), {axis})",
        f"jnp.argmax(jax.nn.softmax({x}, {axis}), {axis})",
    )]  # fmt: skip


def cumulations(o: Operands) -> list[str]:
    """Cumulative operations of all kinds, and their ends."""
    shape = (*o.shape(0, 2, 4), o.size(1, 21))
    shape = shape if o.w.chance(0.6) else shape[::-1]
    x, axis = o(*shape), o.axis(shape)
    name = o.one_of("cumsum", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
    if name != "cumlogsumexp" and o.w.chance(0.2):
        x = o.bound(f"jnp.round({x}).astype('int32')")
    back = o.w.chance(0.35)
    text = f"lax.{name}({x}, {axis % len(shape)}, reverse={back})"
    if not back and name in ("cumsum", "cumprod") and o.w.chance(0.5):
        text = f"jnp.{name}({x}, {axis})"
    if o.w.chance(0.6):
        return [text]
    k = o.size(1, shape[axis])
    part = o.one_of("-1", "0", "-1:", ":1", f"{k - 1}", f"-{k}:", "::-1", "1:")
    return [_at(o, o.bound(text), len(shape), axis, part)]


def lookups(o: Operands) -> list[str]:
    """Searches in sorted tables, and counts."""
    table = o.bound(f"jnp.sort({o(o.size(1, 9))})")
    x = o(*o.shape(0, 2))
    side = o.one_of("left", "right")
    return [o.one_of(
        f"jnp.searchsorted({table}, {x}, side={side!r})", f"jnp.digitize({x}, {table})",
        f"jnp.searchsorted({table}, {x}, side={side!r}, method='sort')",
    )]  # fmt: skip


# --- linear algebra ----------------------------------------------------------------------------------------------


def solves(o: Operands) -> list[str]:
    """Systems, inverses and their products, factors, of few or many matrices."""
    n, batch = o.size(1, 5), () if o.w.chance(0.4) else (o.size(1, 4),)
    A, k = o.regular(*batch, n, n), o.size(1, 4)
    B, b, C = (o(*batch, *s, dtype="float32") for s in ((n, k), (n,), (k, n)))
    how = o.one_of("solve", "inverse", "products", "positive", "triangle", "factors")
    if how == "solve":
        return [o.one_of(
            f"jnp.linalg.solve({A}, {B})", f"jnp.linalg.solve({A}, {b}[..., None])[..., 0]",
            f"jnp.linalg.solve(jnp.matrix_transpose({A}), {B})",
            f"jnp.matrix_transpose(jnp.linalg.solve(jnp.matrix_transpose({A}), jnp.matrix_transpose({C})))",
            f"jax.scipy.linalg.solve({A}, {B})", f"jnp.linalg.solve({A}, jnp.eye({n}, dtype='float32'))",
            f"jnp.linalg.solve({A}, jnp.linalg.solve({A}, {B}))",
        )]  # fmt: skip
    if how == "inverse":
        return [o.one_of(f"jnp.linalg.inv({A})", f"jnp.linalg.matrix_power({A}, -2)", f"jnp.linalg.pinv({A})")]
    if how == "products":
        inverse = o.bound(f"jnp.linalg.inv({A})")
        return [o.one_of(
            f"{inverse} @ {B}", f"{C} @ {inverse}", f"{C} @ {inverse} @ {B}", f"{inverse} @ {A}",
            f"jnp.einsum('...ij,...j->...i', {inverse}, {b})", f"jnp.einsum('...i,...ij,...j', {b}, {inverse}, {b})",
            f"jnp.matrix_transpose({inverse}) @ {B}", f"jnp.matrix_transpose({inverse} @ {B})",
            f"{inverse} @ {B} + jnp.linalg.slogdet({A})[1].sum()", f"jnp.sum({inverse} * {b}[..., None, :], -1)",
            f"({inverse} * 2) @ {B} - {B}", f"{inverse} * {A}",
        )]  # fmt: skip
    if how == "positive":
        S = o.bound(f"{A} @ jnp.matrix_transpose({A}) + jnp.eye({n}, dtype='float32')")
        L = o.bound(f"jnp.linalg.cholesky({S})")
        d = f"jnp.diagonal({L}, axis1=-2, axis2=-1)"
        one = f"jax.scipy.linalg.cho_solve(({L}, True), {B})" if not batch else f"{L} @ {B}"
        return [o.one_of(
            L, one, f"jnp.linalg.cholesky({S}, upper=True)", f"jnp.linalg.slogdet({S})[1]",
            f"jnp.linalg.solve({S}, {B})", f"2 * jnp.log({d}).sum(-1)", f"jnp.log({d})", f"{d}.prod(-1)", d,
        )]  # fmt: skip
    if how == "triangle":
        options = f"left_side={o.w.chance(0.6)}, lower={o.w.chance(0.5)}, transpose_a={o.w.chance(0.4)}"
        options += f", unit_diagonal={o.w.chance(0.3)}"
        right = B if "left_side=True" in options else C
        return [f"lax.linalg.triangular_solve({A}, {right}, {options})"]
    return [o.one_of(
        f"jnp.linalg.det({A})", f"jnp.linalg.det({A}) * {b}[..., 0]",
        f"jnp.linalg.slogdet({A})[0]", f"jnp.linalg.slogdet({A})[1]",
        f"jnp.log(jnp.abs(jnp.linalg.det({A})))", f"lax.linalg.lu({A})[0]", f"lax.linalg.lu({A})[2]",
        f"jnp.stack(jnp.linalg.slogdet({A}))", f"jnp.exp(jnp.linalg.slogdet({A})[1] / 9)",
    )]  # fmt: skip


def small_products(o: Operands) -> list[str]:
    """Products of many small matrices, and of rows with one."""
    g, i, j, k = (o.size(1, 5) for _ in range(4))
    X, Y, v, M = o(g, i, j), o(g, j, k), o(g, j), o(j, k)
    return [o.one_of(
        f"{X} @ {Y}", f"jnp.einsum('gij,gjk->gki', {X}, {Y})", f"jnp.einsum('gij,gj->gi', {X}, {v})", f"{X} @ {M}",
        f"{v} @ {M}", f"jnp.tanh({v}) @ {M}", f"jnp.einsum('gij,gik->gjk', {X}, {X})", f"{v} @ {v}.T",
        f"jnp.tensordot({X}, {Y}, ((0, 2), (0, 1)))", f"jnp.einsum('gij,gjk->ik', {X}, {Y})", f"jnp.sin({v} @ {M})",
        f"jax.vmap(jnp.outer)({v}, {v})", f"jax.vmap(lambda a: a @ {M})({v})", f"{X} @ jnp.matrix_transpose({X})",
    )]  # fmt: skip


# --- elementary functions, convolutions, pools -------------------------------------------------------------------


def elementary(o: Operands) -> list[str]:
    """Functions that XLA calls one element at a time, and powers of all kinds."""
    shape = (o.size(1, 2), 31)
    x, y = o(*shape), o(*shape)
    if o.w.chance(0.5):
        name = o.one_of("sin", "cos", "tan", "arctan", "cbrt", "sinc", "log")
        return [f"jnp.{name}({x} * {o.one_of('1', '1000', '0.001')})"]
    if o.w.chance(0.15):
        exponent = o.one_of("1.5", "-0.5", "2.5", "3.5", "4.5", "-1.5")
        return [f"jnp.abs({x}) ** {exponent}"]
    positive = o.bound(f"jnp.abs({x}) + {o.one_of('0.5', '0')}")
    exponent = o.one_of("1.5", "-0.5", "2.5", "0.5", "-1", "2", "3", "1.7", "-2.5", "0", y)
    return [o.one_of(
        f"jnp.arctan2({x}, {y})", f"jnp.arcsin({x} / 2)", f"jnp.arccos({y} / 2)", f"{positive} ** {exponent}",
        f"jnp.power({positive}, {exponent})", f"2.0 ** {x}", f"jnp.hypot({x}, {y})", f"jnp.angle({x} + 1j * {y})",
        f"jnp.sin({x})[..., None] * jnp.ones(3, {x}.dtype)", f"jnp.log({positive} + 1) * {y}",
    )]  # fmt: skip


def convolutions(o: Operands) -> list[str]:
    """Convolutions of few terms, in groups, and such as make few channels of many, in any layout."""
    rank = o.size(1, 2)
    groups = o.w.one_of((1, 1, 1, 2, 3))
    given, made = groups * o.size(1, 3), groups * o.size(1, 3)
    if o.w.chance(0.3):
        groups, given, made = 1, o.size(6, 8), o.size(1, 4)
    if o.w.chance(0.3):
        groups = made = given
    sizes, places = [o.size(3, 6) for _ in range(rank)], [o.size(1, 3) for _ in range(rank)]
    space = "HW"[:rank]
    lhs, out = ("N" + space + "C" if o.w.chance(0.4) else "NC" + space for _ in range(2))
    rhs = o.one_of("OI" + space, space + "IO")
    of = {"N": o.size(1, 2), "C": given, "O": made, "I": given // groups}
    x = o(*(of[c] if c in of else sizes[space.index(c)] for c in lhs), dtype="float32")
    kernel = o(*(of[c] if c in of else places[space.index(c)] for c in rhs), dtype="float32")
    if rank == 1 and o.w.chance(0.15):
        mode = o.one_of("same", "valid", "full")
        return [f"jnp.convolve({o(sizes[0], dtype='float32')}, {o(places[0], dtype='float32')}, {mode!r})"]
    strides = [o.w.one_of((1, 1, 2)) for _ in range(rank)]
    padding = o.one_of("'SAME'", "'VALID'", repr([(o.size(0, 2), o.size(0, 2)) for _ in range(rank)]))
    more = "" if o.w.chance(0.7) else f", rhs_dilation={[o.size(1, 2) for _ in range(rank)]}"
    if not o.w.chance(0.7) and "'" not in padding:
        more += f", lhs_dilation={[o.size(1, 2) for _ in range(rank)]}"
    layout = f"dimension_numbers={(lhs, rhs, out)}, feature_group_count={groups}{more}"
    return [f"lax.conv_general_dilated({x}, {kernel}, {strides}, {padding}, {layout})"]


def pools(o: Operands) -> list[str]:
    """Pools, sums and minima of windows, in pairs and otherwise, and what they pass back."""
    rank = o.size(1, 3)
    shape = tuple(o.size(2, 6) for _ in range(rank))
    window, strides = ([o.w.one_of((1, 2, 2, 3)) for _ in range(rank)] for _ in range(2))
    strides = window if o.w.chance(0.6) else strides
    padding = o.one_of("'VALID'", "'SAME'")
    x, is_plain = o(*shape), o.w.chance(0.3)
    fold = o.one_of("-jnp.inf, lax.max", "-jnp.inf, lax.max", "jnp.inf, lax.min", "0.0, lax.add", "0.0, lax.add")
    text = f"lax.reduce_window({{x}}, {fold}, {window}, {strides}, {padding})"
    if is_plain:
        return [text.format(x=x)]
    return [f"jax.grad(lambda x: jnp.sum(jnp.sin({text.format(x='x')})))({x})"]


def transforms(o: Operands) -> list[str]:
    """Convolutions by Fourier transforms."""
    n = o.w.one_of((1, 2, 3, 4, 5, 8, 10, 14))
    x, k = o(o.size(), n, dtype="float32"), o(n, dtype="float32")
    return [o.one_of(
        f"jnp.fft.ifft(jnp.fft.fft({x}) * jnp.fft.fft({k})).real", f"jnp.fft.ifft(jnp.fft.fft({x}) * {k}).real",
        f"jnp.real(jnp.fft.ifft(jnp.fft.fft({k}) * jnp.fft.fft({x})))", f"jnp.abs(jnp.fft.fft({x}))",
        f"jnp.fft.ifft(jnp.fft.fft({x}) * jnp.fft.fft({k})).imag",
    )]  # fmt: skip


# --- sums of products --------------------------------------------------------------------------------------------


def chains(o: Operands) -> list[str]:
    """Products of several matrices, and what is taken of them."""
    i, j, k, m = (o.size(1, 6) for _ in range(4))
    A, B, C, v = o(i, j), o(j, k), o(k, m), o(k)
    square, other = o(i, i), o(i, i)
    return [o.one_of(
        f"{A} @ {B} @ {v}", f"({A} @ {B}) @ {C}", f"{A} @ ({B} @ {C})", f"jnp.linalg.multi_dot([{A}, {B}, {C}])",
        f"jnp.einsum('ij,jk,kl->il', {A}, {B}, {C})", f"({A} @ {B} / 8) @ {C}", f"jnp.trace({square} @ {other})",
        f"jnp.linalg.matrix_power({square}, 3) @ {A}",
        f"jnp.diag({square} @ {other})", f"jnp.sum({A} @ {B})", f"jnp.sum({A} @ {B}, {o.size(0, 1)})",
        f"jnp.diag({A} @ {A}.T)", f"jnp.sum(({A} @ {B}) ** 2)", f"jnp.mean({A} @ {B} @ {C}, 0)",
        f"jnp.sum({square} * ({A} @ {A}.T))", f"jnp.einsum('ij,ij->', {square}, {other} @ {square})",
        f"jnp.vdot({square}, {other}.T @ {square})", f"jnp.sum({A}[:, :, None] * {B}, 1)",
        f"jnp.sum({A}[:, :, None] * {B}[None], axis=(0, 1))", f"jnp.linalg.norm({A} @ {B})",
        f"jax.vmap(lambda a: a @ {square} @ a)({other})", f"jnp.outer({v}, {v}) @ {C}", f"({A} @ {B}).T @ {A}",
    )]  # fmt: skip


def structures(o: Operands) -> list[str]:
    """Products with matrices that are known: one-hot, diagonal, repeated, Kronecker, in parts."""
    n, k, m = o.size(1, 6), o.size(1, 4), o.size(1, 6)
    A, d, i = o(n, k), o(n), o.integers(n + 1, m)
    one = o.bound(f"jax.nn.one_hot({i}, {n}, dtype={o.dtype!r})")
    P, Q = o(k, k), o(2, 2)
    return [o.one_of(
        f"{one} @ {A}", f"{A}.T @ {one}.T", f"jnp.sum({one} * {o(m, n)}, -1)", f"{one} @ {A} + jnp.sum({one})",
        f"jnp.einsum('ti,ij->tj', {one}, {A})", f"jnp.diag({d}) @ {A}", f"{A}.T @ jnp.diag({d})",
        f"{A}.T @ jnp.diag({d}) @ {A}", f"jnp.eye({n}, dtype={o.dtype!r}) @ {A}",
        f"jnp.eye({n}, k=1, dtype={o.dtype!r}) @ {A}",
        f"jnp.broadcast_to({d}, ({m}, {n})) @ {A}", f"jnp.ones(({m}, {n}), {o.dtype!r}) @ {A}",
        f"jnp.kron({P}, {Q}) @ {o(2 * k)}", f"jnp.kron({P}, {Q}) @ {o(2 * k, 3)}", f"jnp.tril({o(n, n)}) @ {A}",
        f"jnp.concatenate([jnp.broadcast_to({d}, ({m}, {n})), {o(m, k)}], 1) @ {o(n + k, 3)}",
        f"jnp.pad({A}, ((0, 2), (0, 1))).T @ {o(n + 2, 2)}", f"(jnp.diag({d}) + {o(n, n)}) @ {A}",
        f"jax.jacfwd(lambda x: jnp.tanh({A}.T @ x))({d})", f"jax.jacrev(lambda x: jnp.tanh({A}.T @ x))({d})",
        f"-jnp.sum({one} * jax.nn.log_softmax({o(m, n)}), -1)", f"({one} > 0.5) @ {A}",
        f"jnp.where({one} == 1, 0, 1).astype({o.dtype!r}) @ {A}", f"{A}[{i}]",
    )]  # fmt: skip


def full_sums(o: Operands) -> list[str]:
    """Full sums of affine terms, outer products and squares."""
    n, m = o.size(1, 7), o.size(1, 7)
    a, b, x, y = o(n, m), o(n, m), o(n), o(m)
    s = o()
    return [o.one_of(
        f"jnp.sum(jnp.outer({x}, {y}))", f"jnp.sum(({a} * {s} - {b}) ** 2)", f"jnp.mean({a} + {s} * {b})",
        f"jnp.sum({x}[:, None] * {y} + {a})", f"jnp.sum({s} * {a} * {b} - {b} / 3)",
        f"jnp.sum(-0.5 * ({x} - {s}) ** 2)",
        f"jnp.sum({a} * {x}[:, None] * {y})", f"jnp.sum(({a} - {s}) * ({a} + {s}))", f"jnp.sum({a} + 1)",
        f"jax.grad(lambda s: jnp.sum(({a} * s - {b}) ** 2))({s})", f"jnp.sum((({x} - {s}) / 2) ** 2 + {x})",
        f"jax.scipy.stats.norm.logpdf({x}, {s}, 0.7).sum()", f"jnp.var({a})", f"jnp.sum(({x}[:, None] - {y}) ** 2)",
    )]  # fmt: skip


def short_axes(o: Operands) -> list[str]:
    """Reductions over an axis of a few entries, and of pairs of points."""
    n, m, d = o.size(1, 7), o.size(1, 7), o.w.one_of((1, 2, 3, 3, 4, 8, 9))
    p, q, v = o(n, d), o(m, d), o(m)
    pairs = f"{p}[:, None] - {q}"
    return [o.one_of(
        f"jnp.sum({p} * {p}, -1)", f"jnp.linalg.norm({p} + 0.1, axis=-1)", f"jnp.max({p}, -1)", f"jnp.min({p}, axis=1)",
        f"jax.nn.softmax({p})", f"jax.nn.logsumexp({p}, -1)", f"jnp.sum({p} * {o(n, d)}, -1)", f"jnp.prod({p}, -1)",
        f"jnp.exp(-jnp.sum(({pairs}) ** 2, -1)) @ {v}", f"jnp.sqrt(jnp.sum(({pairs}) ** 2, -1) + 0.1).sum(1)",
        f"jnp.min(jnp.sum(jnp.square({pairs}), -1), 1)", f"jnp.argmin(((({pairs}) ** 2).sum(-1)), 1)",
        f"jax.nn.softmax({p} @ {q}.T) @ {q}", f"jax.vmap(lambda a: jax.vmap(lambda b: jnp.dot(a, b))({q}))({p})",
        f"jnp.mean({p}, -1, keepdims=True) * {p}", f"jnp.var({p}, -1)", f"jnp.abs({pairs}).max(-1).sum(0)",
        f"jax.nn.logsumexp(-jnp.abs({pairs}).sum(-1) + {v}, 1)",
    )]  # fmt: skip


# --- loops and branches ------------------------------------------------------------------------------------------


def loops(o: Operands) -> list[str]:
    """Arrays that are filled and read in loops, loops that were written in Python, branches of some lanes."""
    n, m = o.size(4, 7), o.size(1, 4)
    x, M, s, i = o(n, m), o(m, m), o(m), o.integers(n, 3)
    new = o.one_of("jnp.tanh({r})", "{r} * 0.5 + {s}", "{r} @ {M}").format(r="{r}", s=s, M=M)
    reads = o.one_of(f"{x}[i]", f"{x}[{n - 1} - i]", "b[jnp.maximum(i - 1, 0)]", f"{x}[i] + b[i - 1]", "b[i]")
    step = f"lambda i, b: b.at[{o.one_of('i', 'i', f'{n - 1} - i')}].set({new.format(r=f'({reads})')})"
    grown = new.format(r="c")
    return [o.one_of(
        f"lax.fori_loop({o.size(0, 1)}, {n}, {step}, {o(n, m)})",
        f"lax.scan(lambda b, r: (jnp.concatenate([b[1:], r[None]]), b.sum(0)), {o(3, m)}, {x})[1]",
        f"lax.scan(lambda b, r: (jnp.roll(b, -1, 0).at[-1].set(r), b[0]), {o(3, m)}, {x})[1]",
        f"sum(({new.format(r=f'{x}[k]')} for k in range({n})), jnp.zeros({m}, {o.dtype!r}))",
        f"jnp.stack([{new.format(r=f'{x}[k]')} for k in range({n})])",
        f"reduce(lambda c, k: {grown} + {x}[k], range({n}), {s})",
        f"jax.vmap(lambda p, r: lax.cond(p, lambda r: {new.format(r='r')}, lambda r: r, r))({x}[:, 0] > 0, {x})",
        f"jax.vmap(lambda k, r: lax.scan(lambda b, v: (jnp.where(k < 2, b.at[k].set(v), b), b[0]), r, r)[0])"
        f"({i} % {m}, {x}[:3])",
        f"jnp.where({x}[0, 0] > 0, {new.format(r=x)}, {x})",
        f"lax.scan(lambda c, r: (c + jnp.outer(r, r), None), jnp.zeros(({m}, {m}), {o.dtype!r}), {x})[0]",
        f"lax.scan(lambda c, r: (c, jnp.tanh(r @ {M})), {s}, {x})[1]",
        f"lax.scan(lambda c, r: (c + jax.nn.softmax({M}) @ r, None), {s}, {x})[0]",
    )]  # fmt: skip


SITES: tuple[tuple[float, Callable[[Operands], list[str]]], ...] = (
    (2.5, sorts), (1.5, extrema), (1.5, cumulations), (0.5, lookups), (3.5, solves), (1.5, small_products),
    (2.5, elementary), (2, convolutions), (1, pools), (0.5, transforms), (3, chains), (3, structures), (2, full_sums),
    (2, short_axes), (2, loops),
)  # fmt: skip
