"""One-line expressions: elementwise operations, reductions, movements of data, contractions, random numbers."""

import math

from .writer import FLOATS, INTS, Scope, Value, Writer, joined

_UNARY = (
    ("jnp.sin({x})", 1.0), ("jnp.tanh({x})", 1.0), ("jax.nn.sigmoid({x})", 1.0), ("jnp.exp(-jnp.abs({x}))", 1.0),
    ("jnp.sqrt(jnp.abs({x}) + 0.5)", 4.0), ("jnp.log1p(jnp.abs({x}))", 3.0), ("{x} * 0.5", None), ("-{x}", None),
    ("jnp.cos({x})", 1.0), ("jnp.abs({x})", None), ("jnp.maximum({x}, 0.1)", None), ("jax.nn.relu({x})", None),
    ("jax.nn.softplus({x})", 17.0), ("jnp.clip({x}, -1, 1)", 1.0), ("1 / ({x} * {x} + 1.0)", 1.0), ("1.5 - {x}", None),
    ("jnp.where({x} > 0, {x}, 0.1 * {x})", None), ("lax.stop_gradient({x})", None), ("jnp.arctan({x})", 1.6),
    ("jnp.expm1(-jnp.square({x}))", 1.0), ("jnp.floor({x})", None), ("jnp.sign({x})", 1.0), ("({x} + 0)", None),
    ("({x} * 1)", None), ("jnp.positive({x})", None), ("jax.nn.gelu({x})", None), ("lax.erf({x})", 1.0),
)  # fmt: skip
_BINARY = (
    ("{x} + {y}", "+"), ("{x} - {y}", "+"), ("{x} * {y}", "*"), ("{x} / ({y} * {y} + 1)", "/"),
    ("jnp.maximum({x}, {y})", "m"), ("jnp.minimum({x}, {y})", "m"), ("jnp.where({x} > {y}, {x}, {y} * 0.5)", "m"),
    ("jnp.hypot({x}, {y} + 3)", "+"), ("jnp.arctan2({x}, {y} * {y} + 1)", "/"), ("jnp.logaddexp({x}, {y})", "+"),
)  # fmt: skip
_INTEGER = ("{x} + 3", "{x} * 5", "{x} // 3", "{x} % 7", "{x} ^ 5", "{x} & 3", "{x} << 1", "jnp.minimum({x}, 4)",
            "-{x}", "jnp.sign({x})", "lax.population_count({x})", "jnp.where({x} > 2, {x}, 1)")  # fmt: skip


def unary(w: Writer, scope: Scope) -> Value:
    """A float operation of one value."""
    x = w.floating(scope)
    text, bound = w.one_of(_UNARY)
    if bound is None:
        bound = x.bound + 1.5
    return w.let(scope, text.format(x=x.name), x.shape, x.dtype, bound)


def polynomial(w: Writer, scope: Scope) -> Value:
    """An integer power."""
    x = w.floating(scope)
    power = w.one_of((2, 3))
    return w.let(scope, f"{x.name} ** {power}", x.shape, x.dtype, max(x.bound, 1.0) ** power)


def binary(w: Writer, scope: Scope) -> Value:
    """A float operation of two values that broadcast, or of one value used twice, or with a Python scalar."""
    x = w.floating(scope)
    kind = w.weighted([(2, "same"), (1, "twice"), (1, "scalar"), (2, "broadcast"), (1, "mixed")])
    text, growth = w.one_of(_BINARY)
    shape, dtype = x.shape, x.dtype
    if kind == "twice":
        w.note("repeated_operand")
        y = x
    elif kind == "scalar":
        w.note("python_scalar")
        number = w.one_of((0.5, 2, -1.5, 3))
        y = Value(str(number), (), x.dtype, 3.0)
    elif kind == "mixed":
        other = w.pick(scope, lambda v: v.is_float and v.dtype != x.dtype and v.shape in ((), x.shape))
        y = w.coerced(scope, x, x.shape, w.one_of(FLOATS)) if other is None else other
        dtype = joined(x.dtype, y.dtype)
        if dtype != x.dtype:
            w.note("mixed_dtypes")
    elif kind == "broadcast" and x.ndim:
        w.note("broadcast")
        cut = w.rng.randint(0, x.ndim)
        small = tuple(1 if w.chance(0.3) else n for n in x.shape[cut:])
        y = w.like(scope, small, x.dtype)
    else:
        y = w.like(scope, x.shape, x.dtype)
    bound = {"+": x.bound + y.bound, "*": x.bound * y.bound, "/": x.bound, "m": max(x.bound, y.bound)}[growth]
    return w.let(scope, text.format(x=x.name, y=y.name), shape, dtype, bound + (3.0 if "hypot" in text else 0.0))


def cast(w: Writer, scope: Scope) -> Value:
    """A change of dtype, often there and back (a narrowing that must not be dropped)."""
    x = w.floating(scope)
    dtype = w.one_of(FLOATS + INTS[:1] + ("bool", "complex64"))
    text = w.cast_text(x, dtype)
    w.note("cast")
    if dtype in FLOATS and w.chance(0.5):
        w.note("narrowing")
        return w.let(scope, f"{text}.astype({x.dtype!r})", x.shape, x.dtype, x.bound)
    return w.let(scope, text, x.shape, dtype, x.bound)


def integer(w: Writer, scope: Scope) -> Value:
    """An integer or boolean operation; overflow wraps."""
    x = w.pick(scope, lambda v: v.is_int)
    if x is None or w.chance(0.2):
        x = w.like(scope, w.shape(0, 2), w.one_of(INTS))
    w.note("integer", x.dtype)
    if w.chance(0.25):
        w.note("bool")
        return w.let(scope, w.one_of((f"{x.name} > 3", f"{x.name} != {x.name} // 2", f"({x.name} % 2) == 0")), x.shape,
                     "bool")  # fmt: skip
    if x.ndim and w.chance(0.3):
        w.note("integer_reduction")
        how = w.one_of(("sum", "prod", "cumsum"))
        shape = x.shape if how == "cumsum" else x.shape[1:]
        return w.let(scope, f"jnp.{how}({x.name}, axis=0, dtype={x.dtype!r})", shape, x.dtype, 100.0)
    return w.let(scope, w.one_of(_INTEGER).format(x=x.name), x.shape, x.dtype, 100.0)


def boolean(w: Writer, scope: Scope) -> Value:
    """A comparison, a logical operation, or a selection."""
    w.note("bool")
    x = w.floating(scope)
    flag = w.pick(scope, lambda v: v.dtype == "bool")
    if flag is None or w.chance(0.4):
        return w.let(scope, w.one_of((f"{x.name} > 0.5", f"{x.name} <= 1", f"jnp.isfinite({x.name})")), x.shape, "bool")
    if w.chance(0.4):
        return w.let(scope, w.one_of((f"~{flag.name}", f"{flag.name} & True", f"{flag.name} | ~{flag.name}")),
                     flag.shape, "bool")  # fmt: skip
    y = w.like(scope, flag.shape, x.dtype)
    return w.let(scope, f"jnp.where({flag.name}, {y.name}, {w.one_of(('0', '-1.5', y.name))})", flag.shape, x.dtype, 3)


def imaginary(w: Writer, scope: Scope) -> Value:
    """An operation on complex numbers, usually ending in a real one."""
    w.note("complex")
    z = w.pick(scope, lambda v: v.dtype == "complex64")
    if z is None:
        x = w.floating(scope)
        z = w.let(scope, w.cast_text(x, "complex64"), x.shape, "complex64", x.bound)
    if w.chance(0.6):
        text = w.one_of(("jnp.real({z} * jnp.conj({z}))", "jnp.imag({z} * 2)", "jnp.real({z})", "jnp.real({z}**2)"))
        return w.let(scope, text.format(z=z.name), z.shape, "float32", z.bound**2 + 2)
    text = w.one_of(("{z} * (0.5 + 0.5j)", "jnp.conj({z})", "{z} + 1j", "jnp.exp(1j * jnp.real({z}))"))
    return w.let(scope, text.format(z=z.name), z.shape, "complex64", z.bound + 1)


def reduction(w: Writer, scope: Scope) -> Value:
    """A reduction over drawn axes."""
    x = w.floating(scope, least=1)
    return reduce_value(w, scope, x, w.rng.sample(range(x.ndim), w.rng.randint(1, x.ndim)))


def reduce_value(w: Writer, scope: Scope, x: Value, axes: list[int]) -> Value:
    """`x` reduced over these axes, some way."""
    axes = sorted(axes)
    keep = w.chance(0.2)
    shape = tuple((1 if keep else -1) if i in axes else n for i, n in enumerate(x.shape))
    shape = tuple(n for n in shape if n != -1)
    count = math.prod(x.shape[i] for i in axes)
    named = f"axis={tuple(axes) if len(axes) > 1 else axes[0]}, keepdims={keep}"
    negative = f"axis={axes[0] - x.ndim}, keepdims={keep}" if len(axes) == 1 and w.chance(0.3) else named
    named = "" if len(axes) == x.ndim and not keep and w.chance(0.5) else negative
    flag = f"{x.name} > 0.5"
    choices = [(3, "sum"), (1, "any"), (1, "all"), (1, "prod")]
    if count:
        choices += [(3, "mean"), (2, "max"), (2, "min"), (2, "var"), (2, "logsumexp")]
        choices += [(1, "argmax")] if len(axes) == 1 else []
    how = w.weighted(choices)
    w.note("reduction", how)
    match how:
        case "sum":
            return w.let(scope, f"jnp.sum({x.name}, {named})", shape, x.dtype, x.bound * max(count, 1))
        case "any" | "all":
            return w.let(scope, f"jnp.{how}({flag}, {named})", shape, "bool")
        case "prod":
            return w.let(scope, f"jnp.prod(jnp.cos({x.name}), {named})", shape, x.dtype, 1)
        case "var":
            return w.let(scope, f"jnp.var({x.name}, {named})", shape, x.dtype, x.bound**2)
        case "logsumexp":
            return w.let(scope, f"jax.nn.logsumexp({x.name}, {named})", shape, x.dtype, x.bound + 4)
        case "argmax":
            name = w.one_of(("argmax", "argmin"))
            return w.let(scope, f"jnp.{name}({x.name}, {negative})", shape, "int32", 5)
    return w.let(scope, f"jnp.{how}({x.name}, {named})", shape, x.dtype, x.bound)


def along(w: Writer, scope: Scope) -> Value:
    """An operation along an axis that keeps the shape: cumulative sums, softmax, sort."""
    x = w.floating(scope, least=1)
    axis = w.rng.randrange(x.ndim)
    n = max(x.shape[axis], 1)
    choices = [("jnp.cumsum({x}, axis={a})", x.bound * n), ("jnp.sort({x}, axis={a})", x.bound),
               ("jnp.flip({x}, axis={a})", x.bound), ("jnp.cumprod(jnp.cos({x}), axis={a})", 1.0),
               ("jnp.roll({x}, 1, axis={a})", x.bound)]  # fmt: skip
    if x.shape[axis]:
        choices += [("jax.nn.softmax({x}, axis={a})", 1.0), ("jax.nn.log_softmax({x}, axis={a})", x.bound * 2 + 3)]
    text, bound = w.one_of(choices)
    w.note("cumulative" if "cum" in text else "along_axis")
    return w.let(scope, text.format(x=x.name, a=axis), x.shape, x.dtype, bound)


def movement(w: Writer, scope: Scope) -> Value:
    """A reshape, transpose, slice, concatenation, gather or update."""
    x = w.floating(scope, least=1)
    axis = w.rng.randrange(x.ndim)
    n, before, after = x.shape[axis], x.shape[:axis], x.shape[axis + 1 :]
    lead = ":, " * axis
    choices = ["reshape", "transpose", "slice", "strided", "reverse", "concatenate", "broadcast", "expand", "stack"]
    if n and x.size:
        choices += ["dynamic_slice", "gather", "index", "update", "pad", "traced_index"]
    how = w.one_of(choices)
    w.note(how, "movement")
    match how:
        case "reshape":
            shape = w.one_of(((x.size,), (1, *x.shape), x.shape[::-1], (x.size, 1)))
            return w.let(scope, f"jnp.reshape({x.name}, {shape})", shape, x.dtype, x.bound)
        case "transpose":
            order = w.rng.sample(range(x.ndim), x.ndim)
            shape = tuple(x.shape[i] for i in order)
            return w.let(scope, f"jnp.transpose({x.name}, {tuple(order)})", shape, x.dtype, x.bound)
        case "slice":
            start = w.rng.randint(0, n)
            text, size = (f"{start}:", n - start) if w.chance(0.5) else (f"-{n - start}:", n - start or n)
            return w.let(scope, f"{x.name}[{lead}{text}]", (*before, size, *after), x.dtype, x.bound)
        case "strided":
            step = w.one_of((2, 3))
            return w.let(scope, f"{x.name}[{lead}::{step}]", (*before, -(-n // step), *after), x.dtype, x.bound)
        case "reverse":
            return w.let(scope, f"{x.name}[{lead}::-1]", x.shape, x.dtype, x.bound)
        case "concatenate":
            y = w.like(scope, x.shape, x.dtype)
            text = f"jnp.concatenate([{x.name}, {y.name}], axis={axis})"
            return w.let(scope, text, (*before, 2 * n, *after), x.dtype, max(x.bound, y.bound))
        case "broadcast":
            k = w.dim()
            return w.let(scope, f"jnp.broadcast_to({x.name}, {(k, *x.shape)})", (k, *x.shape), x.dtype, x.bound)
        case "expand":
            return w.let(scope, f"jnp.expand_dims({x.name}, {axis})", (*before, 1, n, *after), x.dtype, x.bound)
        case "stack":
            return w.let(scope, f"jnp.stack([{x.name}, -{x.name}], axis={axis})", (*before, 2, n, *after), x.dtype,
                         x.bound)  # fmt: skip
        case "dynamic_slice":
            size, i = w.rng.randint(1, n), _index(w, scope)
            text = f"lax.dynamic_slice_in_dim(jnp.asarray({x.name}), {i}, {size}, axis={axis})"
            return w.let(scope, text, (*before, size, *after), x.dtype, x.bound)
        case "gather":
            k = w.one_of((1, 2, 4))
            rows = [w.rng.randrange(-n, n) for _ in range(k)]
            text = w.one_of((f"jnp.take({x.name}, jnp.array({rows}), axis={axis})",
                             f"{x.name}[{lead}np.array({rows})]"))  # fmt: skip
            return w.let(scope, text, (*before, k, *after), x.dtype, x.bound)
        case "index":
            return w.let(scope, f"{x.name}[{lead}{w.rng.randrange(-n, n)}]", before + after, x.dtype, x.bound)
        case "traced_index":
            text = f"jnp.asarray({x.name})[{lead}{_index(w, scope)}]"
            return w.let(scope, text, before + after, x.dtype, x.bound)
        case "pad":
            widths = [(0, 0)] * x.ndim
            widths[axis] = (1, w.one_of((0, 2)))
            return w.let(scope, f"jnp.pad({x.name}, {widths})", (*before, n + sum(widths[axis]), *after), x.dtype,
                         x.bound)  # fmt: skip
    verb = w.one_of(("set", "add", "multiply", "max"))
    text = f"jnp.asarray({x.name}).at[{lead}{_index(w, scope)}].{verb}(0.5)"
    return w.let(scope, text, x.shape, x.dtype, x.bound + 0.5)


def _index(w: Writer, scope: Scope) -> str:
    """A scalar index, traced where the program has an integer."""
    i = w.pick(scope, lambda v: v.is_int and v.shape == ())
    return str(w.rng.randint(0, 3)) if i is None else f"jnp.abs({i.name}.astype('int32')) % 3"


def contraction(w: Writer, scope: Scope) -> Value:
    """A product over an axis, in one of the many ways to write it."""
    x = w.floating(scope, least=1, most=3)
    n, m = x.shape[-1], w.dim()
    how = w.one_of(("matmul", "einsum", "vmap_matvec", "vmap_dot", "tensordot", "gram", "vecmat", "dot_general"))
    w.note("contraction", how)
    bound = x.bound * 2 * max(n, 1)
    if how == "gram":
        text = f"jnp.einsum('...i,...i->...', {x.name}, {x.name})"
        return w.let(scope, text, x.shape[:-1], x.dtype, x.bound**2 * max(n, 1))
    if how == "vmap_dot":
        v = w.like(scope, (n,), x.dtype)
        text = "jnp.dot"
        for _ in range(x.ndim - 1):
            text = f"jax.vmap({text}, in_axes=(0, None))"
        return w.let(scope, f"{text}({x.name}, {v.name})", x.shape[:-1], x.dtype, bound)
    matrix = w.like(scope, (m, n) if how == "vmap_matvec" else (n, m), x.dtype)
    shape = (*x.shape[:-1], m)
    match how:
        case "matmul":
            text = f"{x.name} @ {matrix.name}"
        case "einsum":
            text = f"jnp.einsum('...i,ij->...j', {x.name}, {matrix.name})"
        case "vmap_matvec":
            text = f"lambda v: {matrix.name} @ v"
            for _ in range(x.ndim - 1):
                text = f"jax.vmap({text})"
            text = f"({text})({x.name})"
        case "tensordot":
            text = f"jnp.tensordot({x.name}, {matrix.name}, axes=1)"
        case "dot_general":
            text = f"lax.dot_general({x.name}, {matrix.name}, ((({x.ndim - 1},), (0,)), ((), ())))"
        case _:
            text, shape = f"({matrix.name}.T @ {x.name}.T).T", shape
            if x.ndim > 2:
                text = f"jnp.matmul({x.name}, {matrix.name})"
    return w.let(scope, text, shape, x.dtype, bound)


def batched_product(w: Writer, scope: Scope) -> Value:
    """`vmap(vmap(matmul))` with drawn positions of the batch axes (JAX issue 19327)."""
    w.note("contraction", "vmap_matmul")
    b, c, n, m = (w.dim() for _ in range(4))
    x, y = w.like(scope, (b, n, m) if w.chance(0.5) else (n, b, m), w.dtype), w.like(scope, (m, c), w.dtype)
    axis = 0 if x.shape == (b, n, m) and (b != n) else w.one_of((0, 1))
    b, n = x.shape[axis], x.shape[1 - axis]
    out = w.one_of((0, 1, 2))
    inner = "jax.vmap(jnp.dot, in_axes=(0, None))"
    shape = [n, c]
    shape.insert(out, b)
    text = f"jax.vmap({inner}, in_axes=({axis}, None), out_axes={out})({x.name}, {y.name})"
    return w.let(scope, text, shape, w.dtype, 4.0 * max(m, 1))


def random_numbers(w: Writer, scope: Scope) -> Value:
    """Draws from a key of the program, or of its own; keys are split, folded and carried too."""
    key = w.pick(scope, lambda v: v.is_key and v.shape == ())
    w.note("random")
    if key is None:
        raw = w.chance(0.4)
        text = f"jax.random.{'PRNGKey' if raw else 'key'}({w.rng.randrange(9)})"
        key = w.let(scope, text, (), "rawkey" if raw else "key")
    w.note("typed_key" if key.dtype == "key" else "raw_key")
    if w.chance(0.3):
        how = w.one_of(("split", "fold_in"))
        w.note(f"key_{how}")
        text = f"jax.random.split({key.name})[0]" if how == "split" else f"jax.random.fold_in({key.name}, 3)"
        key = w.let(scope, text, (), key.dtype)
    shape = w.shape(0, 2)
    how = w.weighted([(3, "normal"), (3, "uniform"), (1, "bernoulli"), (1, "randint"), (1, "bits")])
    match how:
        case "bernoulli":
            return w.let(scope, f"jax.random.bernoulli({key.name}, 0.5, {shape})", shape, "bool")
        case "randint":
            return w.let(scope, f"jax.random.randint({key.name}, {shape}, 0, 5)", shape, "int32", 5)
        case "bits":
            return w.let(scope, f"jax.random.bits({key.name}, {shape}, 'uint8')", shape, "uint8", 255)
    return w.let(scope, f"jax.random.{how}({key.name}, {shape}, {w.dtype!r})", shape, w.dtype, 3.0)
