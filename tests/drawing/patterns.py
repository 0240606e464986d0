"""Scans whose outputs are consumed: what loop fusion rewrites, in the many forms in which users write it.

A pattern is a chain: producers of `xs`, a loop, elementwise steps on what it stacked, one to three consumers; all of it
inside a wrapper (a derivative, vmap, cond, another scan, jit, checkpoint) or bare.
"""

from collections.abc import Sequence

from . import control
from .control import names, packed
from .writer import Scope, Value, Writer


def wrapped_pattern(w: Writer, scope: Scope) -> list[Value]:
    """The pattern under a drawn wrapper; returns its results, bound in `scope`."""
    kind = w.weighted([
        (4, "bare"), (3, "grad"), (2, "value_and_grad"), (2, "vmap"), (1, "cond"), (1.5, "scan"), (1, "jit"),
        (1, "checkpoint"), (0.7, "jvp"), (0.7, "vmap_grad"), (0.7, "scan_grad"),
    ])  # fmt: skip
    w.note(f"fusion_{kind}", "fusion")
    if kind == "bare":
        return pattern(w, scope)
    args = control.inputs(w, scope, 2, floats=True)
    inner = scope.inner(reverse=kind.endswith("grad"), forward=kind == "jvp")
    params = control.parameters(w, inner, args)
    return surrounded(w, scope, kind, inner, args, params, pattern(w, inner))


def surrounded(
    w: Writer,
    scope: Scope,
    kind: str,
    inner: Scope,
    args: Sequence[Value],
    params: Sequence[Value],
    results: Sequence[Value],
) -> list[Value]:
    """What stands in `inner`, as a function of `params`, called with `args` under a transformation of this name."""
    batched = kind in ("vmap", "vmap_grad")
    results = [r for r in results if r.size <= 256]
    fun = w.fresh("part")
    if kind.endswith("grad") or kind == "jvp":
        result = control.scalar(w, inner, [*results, params[0]])
    else:
        results = results or [params[0]]
        result = f"({', '.join(f'jnp.asarray({r.name}, {r.dtype!r})' for r in results)},)"
    w.function(scope, f"def {fun}({names(params)}):", inner, result)
    if kind in ("grad", "value_and_grad", "jvp"):
        w.note(kind)
        return control.differentiate(w, scope, fun, args, kind)
    if batched:
        w.note("vmap")
        stack = ", ".join(f"jnp.stack([{a.name}, {a.name} * 0.5, -{a.name}])" for a in args)
        if kind == "vmap_grad":
            fun, results = f"jax.grad({fun})", [args[0]]
            made = Value(w.fresh("v"), (3, *args[0].shape), args[0].dtype, 8.0)
            scope.lines.append(f"{made.name} = jax.vmap({fun})({stack})")
            scope.values.append(made)
            return [made]
        return control.bind_results(w, scope, results, f"jax.vmap({fun})({stack})", (3,))
    if kind == "cond":
        w.note("cond")
        test = w.pick(scope, lambda v: v.dtype == "bool" and v.shape == ())
        text = f"jnp.sum({args[0].name}) > 0" if test is None else test.name
        other = ", ".join(f"jnp.full({r.shape}, 1, {r.dtype!r})" for r in results)
        text = f"lax.cond({text}, {fun}, lambda *_: ({other},), {names(args)})"
        return control.bind_results(w, scope, results, text)
    if kind in ("jit", "checkpoint"):
        w.note("inner_jit" if kind == "jit" else "checkpoint")
        return control.bind_results(w, scope, results, f"jax.{kind}({fun})({names(args)})")
    return _in_scan(w, scope, fun, args, results, kind)


def _in_scan(
    w: Writer, scope: Scope, fun: str, args: Sequence[Value], results: Sequence[Value], kind: str
) -> list[Value]:
    """`fun`, or its gradient, at every step of an outer loop; its outputs are stacked or summed up."""
    w.note("nested_scan", "scan")
    first, *rest = args
    step, length = w.fresh("step"), w.one_of((2, 3))
    others = "".join(f", {r.name}" for r in rest)
    if kind == "scan_grad":
        call, outs = f"(jax.grad({fun})(state{others}),)", [first]
    else:
        call, outs = f"{fun}(state{others})", list(results)
    w.line(scope, f"def {step}(state, _):\n    outs = {call}\n    return state * 0.5, outs")
    outs = control.bind_results(w, scope, outs, f"lax.scan({step}, {first.name}, None, length={length})[1]", (length,))
    if w.chance(0.5):
        return [consume(w, scope, v) if v.is_float and v.ndim <= 3 else v for v in outs]
    return outs


def pattern(w: Writer, scope: Scope) -> list[Value]:
    """Producers, a loop, a chain, consumers; returns the values that they gave."""
    length = w.length()
    made = _loop(w, scope, length)
    stacked, discrete = [v for v in made if v.is_float], [v for v in made if not v.is_float]
    if w.chance(0.2):
        stacked.append(_second_loop(w, scope, stacked[0], length))
    ys = w.one_of(stacked)
    if w.chance(0.5):
        ys = _chain(w, scope, ys)
    count = w.weighted([(5, 1), (2, 2), (1, 3)])
    if count > 1:
        w.note("two_reductions")
    results = [consume(w, scope, ys) for _ in range(count)]
    if w.chance(0.15):
        w.note("reduced_and_returned")
        results.append(ys)
    if len(stacked) > 1 and w.chance(0.5):
        results.append(consume(w, scope, stacked[-1]))
    if discrete and w.chance(0.7):
        results.append(_consume_discrete(w, scope, discrete[0]))
    return results


def _producer(w: Writer, scope: Scope, length: int) -> Value:
    """What goes into the loop per step: an input, a chain, a projection, an outer product, random numbers."""
    how = w.weighted([(3, "as_is"), (3, "chain"), (2, "projection"), (1, "outer"), (1, "arange"), (1, "random")])
    w.note(f"xs_{how}")
    width = w.one_of((1, 2, 3, 4))
    match how:
        case "arange":
            return w.let(scope, f"jnp.arange({length}, dtype={w.dtype!r}) * 0.1", (length,), w.dtype)
        case "random":
            w.note("random", "typed_key")
            keys = f"jax.random.split(jax.random.key({w.rng.randrange(9)}), {length})"
            return w.let(scope, keys, (length,), "key")
        case "outer":
            x, v = w.like(scope, (length,), w.dtype), w.like(scope, (width,), w.dtype)
            return w.let(scope, f"{x.name}[:, None] * {v.name}", (length, width), w.dtype, x.bound * v.bound)
    x = w.like(scope, (length, *((width,) if w.chance(0.8) else ())), w.dtype)
    if how == "chain":
        text = w.one_of(("jnp.tanh({x}) * 2", "({x} - 0.5) * 0.5", "jnp.sin({x}) + jnp.cos({x})", "{x}[::-1]"))
        return w.let(scope, text.format(x=x.name), x.shape, x.dtype, x.bound)
    if how == "projection" and x.ndim == 2:
        matrix = w.like(scope, (x.shape[1], width), w.dtype)
        text = w.one_of(("{x} @ {m}", "jax.vmap(lambda v: v @ {m})({x})", "jnp.einsum('ti,ij->tj', {x}, {m})"))
        return w.let(scope, text.format(x=x.name, m=matrix.name), (length, width), w.dtype, x.bound * 2 * x.shape[1])
    return x


def _loop(w: Writer, scope: Scope, length: int) -> list[Value]:
    """A recurrence with one or two stacked outputs."""
    if w.chance(0.1):
        return [_mapped(w, scope, length)]
    xs = _producer(w, scope, length) if w.chance(0.75) else None
    state = tuple(w.one_of((1, 2, 3, 4)) for _ in range(w.rng.randint(0, 2)))
    if w.zero_sizes and w.chance(0.3):
        w.note("zero_size")
        state = (0, *state[1:])
    init = w.like(scope, state, w.dtype)
    weak = state == () and w.chance(0.3)
    if weak:
        w.note("weak_carry")
    inner = scope.inner()
    carry, step = w.fresh("c"), w.fresh("step")
    x = "x" if xs is not None else "0.25"
    if xs is not None and xs.is_key:
        inner.lines.append(f"x = jax.random.normal(x, {state}, {w.dtype!r})")
    elif xs is not None and xs.shape[1:] != state:
        x = "jnp.sum(x)" if not state or w.chance(0.5) else "jnp.mean(x)"
    body = w.weighted([(3, "tanh"), (3, "decay"), (2, "matrix"), (1, "sum"), (1, "max"), (1, "gated")])
    w.note("scan", f"recurrence_{body}", "scan_with_xs" if xs is not None else "scan_without_xs")
    if body == "matrix" and state and state[-1]:
        m = w.like(scope, (state[-1], state[-1]), w.dtype)
        text = f"jnp.tanh({carry} @ {m.name} + {x})"
    else:
        text = {
            "decay": f"0.9 * {carry} + {x}", "sum": f"{carry} + {x}", "max": f"jnp.maximum({carry} * 0.7, {x})",
            "gated": f"jax.nn.sigmoid({carry}) * {x} + 0.5 * {carry}",
        }.get(body, f"jnp.tanh({carry} * 1.5 + {x})")  # fmt: skip
    inner.lines.append(f"new = ({text}).astype({w.dtype!r})")
    outs = [w.one_of(("new", "new", carry, f"jnp.sin(new) + {carry}", "new * new", "jnp.maximum(new, 0)"))]
    if w.chance(0.3):
        outs.append(w.one_of((f"{carry} * 2", f"new - {carry}", "jnp.exp(-new * new)", "new > 0.1", "new < 0",
                              "jnp.round(new * 5).astype('int32')")))  # fmt: skip
    w.function(scope, f"def {step}({carry}, x):", inner, f"new, ({', '.join(outs)},)")
    options = f", length={length}" if xs is None or w.chance(0.2) else ""
    if w.chance(0.35):
        w.note("scan_reverse")
        options += ", reverse=True"
    if w.chance(0.1):
        w.note("scan_unroll")
        options += ", unroll=2"
    bound = init.bound + 3.0 * (length if body == "sum" else 4)
    dtypes = ["int32" if "int32" in o else "bool" if "<" in o or ">" in o else w.dtype for o in outs]
    made = [Value(w.fresh("y"), (length, *state), dtype, bound) for dtype in dtypes]
    start = "0.0" if weak and w.dtype == "float32" else init.name
    last = w.fresh("v")
    call = f"lax.scan({step}, {start}, {'None' if xs is None else xs.name}{options})"
    scope.lines.append(f"{last}, {packed(made)} = {call}")
    scope.values += made
    if w.chance(0.4):
        scope.values.append(Value(last, state, w.dtype, bound))
    else:
        w.note("scan_unused_carry")
    return made


def _mapped(w: Writer, scope: Scope, length: int) -> Value:
    """A loop that is a map: `lax.map`, or `fori_loop` with `.at[i].set`."""
    x = w.like(scope, (length, 3), w.dtype)
    if w.chance(0.5):
        w.note("lax_map", "scan")
        return w.let(scope, f"lax.map(lambda r: jnp.tanh(r * 2), {x.name})", x.shape, w.dtype)
    w.note("fori_loop", "fori_at_set")
    buffer = f"jnp.zeros({x.shape}, {w.dtype!r})"
    if not length:
        return x
    text = f"lax.fori_loop(0, {length}, lambda i, b: b.at[i].set(jnp.sin(jnp.asarray({x.name})[i]) * 2), {buffer})"
    return w.let(scope, text, x.shape, w.dtype)


def _second_loop(w: Writer, scope: Scope, ys: Value, length: int) -> Value:
    """A second scan over the first one's outputs (or beside it)."""
    w.note("second_scan")
    back = ", reverse=True" if w.chance(0.3) else ""
    made = Value(w.fresh("y"), ys.shape, ys.dtype, ys.bound + 2)
    step = "lambda c, y: (0.5 * c + y, jnp.tanh(c + y))"
    scope.lines.append(f"_, {made.name} = lax.scan({step}, jnp.zeros({ys.shape[1:]}, {ys.dtype!r}), {ys.name}{back})")
    scope.values.append(made)
    return made


def _chain(w: Writer, scope: Scope, ys: Value) -> Value:
    """Elementwise steps on the stacked outputs."""
    w.note("elementwise_after_scan")
    other = w.like(scope, ys.shape if w.chance(0.4) else ys.shape[1:], ys.dtype)
    text = w.one_of(("jnp.sin({y}) * 2", "{y} - {o}", "({y} * {o}) * 0.5", "jnp.where({y} > {o}, {y}, 0)",
                     "jnp.exp(-{y} * {y})", "{y}.astype('float32').astype({d!r})"))  # fmt: skip
    return w.let(scope, text.format(y=ys.name, o=other.name, d=ys.dtype), ys.shape, ys.dtype, ys.bound + other.bound)


def _consume_discrete(w: Writer, scope: Scope, ys: Value) -> Value:
    """A consumer of stacked integers or flags."""
    w.note("consume_discrete")
    rest, length = ys.shape[1:], ys.shape[0]
    choices = [("jnp.sum({y}, axis=0)", "int32"), ("jnp.all({y} > 0, axis=0)", "bool"),
               ("jnp.count_nonzero({y}, axis=0)", "int32")]  # fmt: skip
    if length:
        choices += [("{y}[-1]", ys.dtype), ("jnp.max({y}, axis=0)", ys.dtype), ("jnp.argmin({y}, axis=0)", "int32")]
    text, dtype = w.one_of(choices)
    return w.let(scope, text.format(y=ys.name), rest, dtype, ys.bound * max(length, 1))


def consume(w: Writer, scope: Scope, ys: Value) -> Value:
    """One consumer of the stacked outputs."""
    name, length, rest = ys.name, ys.shape[0], ys.shape[1:]
    choices = [
        (3, "sum"), (1, "sum_all"), (1, "weighted"), (1, "einsum"), (1, "last_few"), (1, "every"), (1, "sum_body"),
        (1, "prod"), (0.5, "cumsum"), (0.5, "any"),
    ]  # fmt: skip
    if ys.size:
        choices += [
            (2, "mean"), (1.5, "mse"), (1.5, "max"), (1, "min"), (1, "argmax"), (1.5, "logsumexp"), (1.5, "var"),
            (2, "last"), (1, "max_all"), (1, "softmax"), (0.5, "norm"),
        ]  # fmt: skip
        if rest and rest[-1]:
            choices += [(2, "cross_entropy"), (1, "head_sum")]
    how = w.weighted(choices)
    w.note(f"consume_{how}")
    dtype, bound = ys.dtype, ys.bound
    axis = ys.ndim - 1
    match how:
        case "sum" | "mean" | "max" | "min" | "var":
            text = w.one_of((f"jnp.{how}({name}, axis=0)", f"{name}.{how}(0)"))
            return w.let(scope, text, rest, dtype, {"sum": bound * max(length, 1), "var": bound**2}.get(how, bound))
        case "sum_all" | "max_all":
            return w.let(scope, f"jnp.{how[:3]}({name})", (), dtype, bound * max(ys.size, 1))
        case "mse":
            target = w.like(scope, ys.shape, dtype)
            text = w.one_of(("jnp.mean(({y} - {t}) ** 2)", "jnp.mean(jnp.square({t} - {y}), axis=0)"))
            shape = rest if "axis=0" in text else ()
            return w.let(scope, text.format(y=name, t=target.name), shape, dtype, (bound + target.bound) ** 2)
        case "logsumexp":
            return w.let(scope, f"jax.nn.logsumexp({name}, axis=0)", rest, dtype, bound + 3)
        case "argmax":
            return w.let(scope, f"jnp.argmax({name}, axis=0)", rest, "int32", float(length))
        case "weighted" | "einsum":
            weights = w.like(scope, (length,), dtype)
            text = f"jnp.tensordot({weights.name}, {name}, axes=1)"
            if how == "einsum":
                text = f"jnp.einsum('t,t...->...', {weights.name}, {name})"
            elif ys.ndim == 2 and w.chance(0.5):
                text = f"({weights.name}[:, None] * {name}).sum(0)"
            return w.let(scope, text, rest, dtype, bound * 2 * max(length, 1))
        case "last":
            return w.let(scope, f"{name}[-1]", rest, dtype, bound)
        case "last_few":
            k = w.rng.randint(1, max(length, 1))
            return w.let(scope, f"{name}[-{k}:]", (min(k, length), *rest), dtype, bound)
        case "every":
            k, start = w.one_of((2, 3)), w.one_of((0, 1))
            return w.let(scope, f"{name}[{start}::{k}]", (max(0, -(-(length - start) // k)), *rest), dtype, bound)
        case "sum_body":
            return w.let(scope, f"jnp.sum({name}, axis={axis})", ys.shape[:-1], dtype, bound * max(ys.shape[-1], 1))
        case "prod":
            return w.let(scope, f"jnp.prod(jnp.cos({name}), axis=0)", rest, dtype, 1.0)
        case "cumsum":
            return w.let(scope, f"jnp.cumsum({name}, axis=0)", ys.shape, dtype, bound * max(length, 1))
        case "any":
            return w.let(scope, f"jnp.any({name} > 0.5, axis=0)", rest, "bool")
        case "softmax":
            return w.let(scope, f"jnp.sum(jax.nn.softmax({name}, axis=0) * {name}, axis=0)", rest, dtype, bound)
        case "norm":
            return w.let(scope, f"jnp.sqrt(jnp.sum({name} * {name}) + 1)", (), dtype, bound * 4)
    width = w.one_of((2, 5))
    head = w.like(scope, (rest[-1], width), dtype)
    logits = w.let(scope, f"{name} @ {head.name}", (*ys.shape[:-1], width), dtype, bound * 2 * rest[-1])
    if how == "head_sum":
        return w.let(scope, f"jnp.sum({logits.name}, axis=0)", logits.shape[1:], dtype, logits.bound * length)
    labels = w.like(scope, ys.shape[:-1], "int32")
    label = f"jnp.abs({labels.name}) % {width}"
    picked = f"jnp.take_along_axis(jax.nn.log_softmax({logits.name}), ({label})[..., None], -1)"
    if w.chance(0.4):
        one_hot = f"jax.nn.one_hot({label}, {width}, dtype={dtype!r})"
        picked = f"jnp.sum(jax.nn.log_softmax({logits.name}) * {one_hot}, -1)"
    return w.let(scope, f"-jnp.mean({picked})", (), dtype, logits.bound * 2)
