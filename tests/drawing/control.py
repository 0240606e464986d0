"""Statements with functions inside: loops, branches, maps, derivatives, nested jits, custom rules."""

from collections.abc import Callable, Sequence

from . import expressions as ex
from .writer import Scope, Value, Writer

_MOST_DEPTH = 3


def statement(w: Writer, scope: Scope) -> None:
    """One drawn statement; deeper functions hold simpler ones."""
    simple: list[tuple[float, Callable[[Writer, Scope], object]]] = [
        (5, ex.unary), (5, ex.binary), (3, ex.reduction), (4, ex.movement), (3, ex.contraction), (1.5, ex.along),
        (1.5, ex.cast), (1.5, ex.integer), (1.5, ex.boolean), (0.7, ex.imaginary), (1, ex.random_numbers),
        (0.7, ex.polynomial), (0.7, ex.batched_product),
    ]  # fmt: skip
    nested: list[tuple[float, Callable[[Writer, Scope], object]]] = [
        (3, scan), (1, loop_map), (1, fori_loop), (1.5, branch), (1.5, vmapped), (1, shared_jit), (1, rematerialised),
        (1.5, derivative), (0.8, custom_jvp), (1, while_loop),
    ]  # fmt: skip
    if not scope.forward:  # a custom_vjp function has no forward-mode derivative
        nested.append((0.8, custom_vjp))
    if scope.depth < _MOST_DEPTH and w.chance(0.3 / (1 + scope.depth)):
        w.weighted(nested)(w, scope)
    else:
        w.weighted(simple)(w, scope)


def block(w: Writer, scope: Scope, most: int) -> None:
    """A few statements."""
    for _ in range(w.rng.randint(1, most)):
        statement(w, scope)


def parameters(w: Writer, inner: Scope, like: Sequence[Value], prefix: str = "p") -> list[Value]:
    """Parameters of an inner function with the types of these values."""
    made = [Value(w.fresh(prefix), v.shape, v.dtype, v.bound) for v in like]
    inner.values += made
    return made


def names(values: Sequence[Value]) -> str:
    """Names in a row."""
    return ", ".join(v.name for v in values)


def packed(values: Sequence[Value]) -> str:
    """A tuple display."""
    return f"({names(values)}{',' if len(values) == 1 else ''})"


def inputs(w: Writer, scope: Scope, most: int, floats: bool = False) -> list[Value]:
    """One or more values to hand to an inner function."""
    some = [v for v in scope.visible() if v.size <= 64 and (v.is_float or not floats)]
    chosen = [w.one_of(some) for _ in range(w.rng.randint(1, most))] if some else []
    return chosen or [w.floating(scope)]


def bind_results(
    w: Writer, scope: Scope, results: Sequence[Value], expression: str, lead: tuple[int, ...] = ()
) -> list[Value]:
    """`a, b = expression`, with the types of `results` behind leading axes."""
    made = [Value(w.fresh("v"), (*lead, *r.shape), r.dtype, r.bound) for r in results]
    scope.lines.append(f"{names(made)}{',' if len(made) == 1 else ''} = {expression}")
    scope.values += made
    return made


def some_results(w: Writer, inner: Scope, most: int = 2) -> list[Value]:
    """What an inner function returns: usually values that it made."""
    found = [v for v in inner.values if v.size <= 64] or [w.let(inner, "jnp.float32(0.5)", (), "float32")]
    return [found[max(w.rng.randrange(len(found)), w.rng.randrange(len(found)))] for _ in range(w.rng.randint(1, most))]


def scalar(w: Writer, inner: Scope, parts: Sequence[Value]) -> str:
    """A float32 scalar that depends on these values: what `grad` differentiates."""
    terms = [f"jnp.sum(jnp.sin({v.name}.astype('float32')))" for v in parts if v.is_float]
    return " + ".join(terms) or f"jnp.sum({w.floating(inner).name}).astype('float32')"


def scan(w: Writer, scope: Scope) -> None:
    """Any scan: several carries (floats, integers, keys), `xs` or none, stacked outputs or none, reverse, unrolled."""
    length = w.length()
    init = inputs(w, scope, 3)
    if w.chance(0.2):
        w.note("scan_integer_carry")
        init.append(Value("0", (), "int32", 100.0))
    keys = [v for v in scope.visible() if v.is_key and v.shape == ()]
    if keys and w.chance(0.6):
        w.note("scan_key_carry")
        init.append(w.one_of(keys))
    xs = []
    for _ in range(w.rng.randint(0, 2)):
        xs.append(w.like(scope, (length, *w.shape(0, 1)), w.one_of((w.dtype, w.dtype, "int32"))))
    w.note("scan", "scan_with_xs" if xs else "scan_without_xs")
    if len(init) > 1:
        w.note("scan_several_carries")
    inner = scope.inner()
    carry = parameters(w, inner, init, "c")
    steps = parameters(w, inner, [Value("", x.shape[1:], x.dtype, x.bound) for x in xs], "x")
    block(w, inner, 3)
    nexts = [_next(w, inner, c) for c in carry]
    outs = [] if w.chance(0.15) else some_results(w, inner)
    step = w.fresh("step")
    head = [f"{names(carry)}{',' if len(carry) == 1 else ''} = carry"]
    if steps:
        head.append(f"{names(steps)}{',' if len(steps) == 1 else ''} = xs")
    inner.lines[:0] = head
    w.function(scope, f"def {step}(carry, xs):", inner, f"{packed(nexts)}, {packed(outs)}")
    options = [f"length={length}"] if not xs or w.chance(0.3) else []
    if w.chance(0.3):
        w.note("scan_reverse")
        options.append("reverse=True")
    if w.chance(0.15):
        w.note("scan_unroll")
        options.append(f"unroll={w.one_of((2, 3, True))}")
    final = [Value(w.fresh("v"), c.shape, c.dtype, c.bound + length) for c in carry]
    stacked = [Value(w.fresh("v"), (length, *o.shape), o.dtype, o.bound) for o in outs]
    left = f"{packed(final)}, {packed(stacked) if outs else '_'}"
    text = f"lax.scan({step}, {packed(init)}, {packed(xs) if xs else 'None'}, {', '.join(options)})"
    scope.lines.append(f"{left} = {text}".replace(", )", ")"))
    kept = w.rng.sample(final, w.rng.randint(0, len(final)))
    if len(kept) < len(final) or not outs:
        w.note("scan_unused_carry")
    scope.values += kept + stacked


def _next(w: Writer, inner: Scope, carry: Value) -> Value:
    """The carry's next value: of its type, bounded, and usually dependent on the old one."""
    name = carry.name
    if carry.is_key and carry.shape == ():
        w.note("random")
        return w.let(inner, f"jax.random.split({name})[1]", (), carry.dtype)
    if carry.is_key or w.chance(0.1):
        w.note("scan_constant_carry")
        return carry
    if not carry.is_float:
        how = {"bool": f"~{name}", "complex64": f"{name} * (0.5 + 0.5j)"}.get(carry.dtype, f"{name} + 1")
        return w.let(inner, how, carry.shape, carry.dtype, carry.bound)
    other = w.pick(inner, lambda v: v.dtype == carry.dtype and v.shape in ((), carry.shape))
    text = w.one_of(("0.5 * {c} + 0.3 * {y}", "jnp.tanh({c} + {y})", "jnp.maximum({c}, {y})", "{c} * 0.9", "{c} + {y}",
                     "jnp.sin({c}) - {y}"))  # fmt: skip
    text = text.format(c=name, y=carry.name if other is None else other.name)
    return w.let(inner, text, carry.shape, carry.dtype, carry.bound + 1.0)


def loop_map(w: Writer, scope: Scope) -> None:
    """`lax.map` over a leading axis."""
    w.note("lax_map", "scan")
    x = w.floating(scope, least=1)
    inner = scope.inner()
    (p,) = parameters(w, inner, [Value("", x.shape[1:], x.dtype, x.bound)])
    block(w, inner, 2)
    outs, fun = some_results(w, inner), w.fresh("body")
    w.function(scope, f"def {fun}({p.name}):", inner, packed(outs))
    batch = ", batch_size=2" if x.shape[0] and w.chance(0.15) else ""
    bind_results(w, scope, outs, f"lax.map({fun}, {x.name}{batch})", (x.shape[0],))


def fori_loop(w: Writer, scope: Scope) -> None:
    """`fori_loop` that fills an array with `.at[i].set`."""
    w.note("fori_loop", "fori_at_set")
    length = max(w.length(), 1)
    x = w.floating(scope, most=1)
    inner = scope.inner()
    i = Value("i", (), "int32", float(length))
    (c,) = parameters(w, inner, [x], "c")
    inner.values.append(i)
    block(w, inner, 2)
    new = _next(w, inner, c)
    out = w.like(inner, x.shape, x.dtype)
    inner.lines.insert(0, f"buffer, {c.name} = state")
    fun, buffer = w.fresh("body"), Value(w.fresh("v"), (length, *x.shape), x.dtype, out.bound)
    w.function(scope, f"def {fun}(i, state):", inner, f"(buffer.at[i].set({out.name}), {new.name})")
    start = f"(jnp.zeros({buffer.shape}, {x.dtype!r}), {x.name})"
    # A traced bound makes a while_loop, which has no reverse-mode derivative.
    bound = w.pick(scope, lambda v: v.is_int and v.shape == ()) if not scope.reverse and w.chance(0.3) else None
    stop = length if bound is None else f"jnp.minimum(jnp.abs({bound.name}).astype('int32'), {length})"
    if bound is not None:
        w.note("while")
    last = Value(w.fresh("v"), x.shape, x.dtype, x.bound + length)
    scope.lines.append(f"{buffer.name}, {last.name} = lax.fori_loop(0, {stop}, {fun}, {start})")
    scope.values += [buffer, last] if w.chance(0.6) else [buffer]


def while_loop(w: Writer, scope: Scope) -> None:
    """`while_loop` with a counter and a float state; where a gradient passes, its input is cut off."""
    w.note("while")
    x = w.floating(scope, most=2)
    inner = scope.inner()
    (c,) = parameters(w, inner, [x], "c")
    inner.lines.append(f"i, {c.name} = state")
    ex.unary(w, inner)
    new = _next(w, inner, c)
    fun, out = w.fresh("body"), Value(w.fresh("v"), x.shape, x.dtype, x.bound + 4)
    start = x.name
    if scope.reverse:
        # Closed-over values carry tangents too: the state alone moves here.
        inner.lines[1:] = []
        new = w.let(inner, f"jnp.sin({c.name}) * 0.9", x.shape, x.dtype)
        start = f"lax.stop_gradient({x.name})"
    stop = "(s[0] < 4)" if w.chance(0.5) else "(s[0] < 6) & (jnp.sum(s[1]) < 3)"
    w.function(scope, f"def {fun}(state):", inner, f"(i + 1, {new.name})")
    scope.lines.append(f"_, {out.name} = lax.while_loop(lambda s: {stop}, {fun}, (0, {start}))")
    scope.values.append(out)


def branch(w: Writer, scope: Scope) -> None:
    """`cond` or `switch` over functions of one type."""
    args = inputs(w, scope, 2)
    count = w.one_of((2, 2, 3))
    w.note("cond" if count == 2 else "switch")
    shapes: list[tuple[tuple[int, ...], str, float]] = []
    funs = []
    for k in range(count):
        inner = scope.inner()
        params = parameters(w, inner, args)
        block(w, inner, 2)
        if k == 0:
            outs = [v for v in some_results(w, inner) if not v.is_key] or [w.floating(inner)]
            shapes = [(v.shape, v.dtype, v.bound) for v in outs]
        else:
            outs = [w.like(inner, shape, dtype) for shape, dtype, _ in shapes]
        strong = ", ".join(f"jnp.asarray({v.name}, {v.dtype!r})" for v in outs)
        funs.append(w.fresh("branch"))
        w.function(scope, f"def {funs[-1]}({names(params)}):", inner, f"({strong},)")
    results = [Value("", shape, dtype, bound) for shape, dtype, bound in shapes]
    if count == 2:
        flag = w.pick(scope, lambda v: v.dtype == "bool" and v.shape == ())
        flag_text = f"jnp.sum({w.floating(scope).name}) > 0.5" if flag is None else flag.name
        bind_results(w, scope, results, f"lax.cond({flag_text}, {funs[0]}, {funs[1]}, {names(args)})")
    else:
        i = w.pick(scope, lambda v: v.is_int and v.shape == ())
        index = f"jnp.argmax({w.one_of(('jnp.arange(3)', 'np.arange(3) % 2'))})" if i is None else i.name
        bind_results(w, scope, results, f"lax.switch({index}.astype('int32'), [{', '.join(funs)}], {names(args)})")


def vmapped(w: Writer, scope: Scope) -> None:
    """`vmap` of a function over an axis of one argument; others are shared."""
    w.note("vmap")
    x = w.floating(scope, least=1)
    shared = inputs(w, scope, 1) if w.chance(0.5) else []
    axis = w.rng.randrange(x.ndim)
    inner = scope.inner()
    params = parameters(w, inner, [Value("", x.shape[:axis] + x.shape[axis + 1 :], x.dtype, x.bound), *shared])
    block(w, inner, 3)
    outs, fun = some_results(w, inner), w.fresh("each")
    w.function(scope, f"def {fun}({names(params)}):", inner, packed(outs))
    axes = (axis, *([None] * len(shared)))
    if x.shape[axis]:
        bind_results(w, scope, outs, f"jax.vmap({fun}, in_axes={axes})({names([x, *shared])})", (x.shape[axis],))


def shared_jit(w: Writer, scope: Scope) -> None:
    """One jitted function, called twice."""
    w.note("inner_jit")
    args = inputs(w, scope, 2)
    inner = scope.inner()
    params = parameters(w, inner, args)
    block(w, inner, 2)
    outs, fun = some_results(w, inner), w.fresh("inner")
    w.line(scope, "@jax.jit")
    w.function(scope, f"def {fun}({names(params)}):", inner, packed(outs))
    bind_results(w, scope, outs, f"{fun}({names(args)})")
    again = [w.like(scope, a.shape, a.dtype) if not a.is_key else a for a in args]
    bind_results(w, scope, outs, f"{fun}({names(again)})")


def rematerialised(w: Writer, scope: Scope) -> None:
    """`jax.checkpoint`, with or without a policy."""
    w.note("checkpoint")
    args = inputs(w, scope, 2)
    inner = scope.inner()
    params = parameters(w, inner, args)
    block(w, inner, 3)
    outs, fun = some_results(w, inner), w.fresh("remat")
    policy = w.one_of(("", ", policy=jax.checkpoint_policies.dots_saveable"))
    w.function(scope, f"def {fun}({names(params)}):", inner, packed(outs))
    bind_results(w, scope, outs, f"jax.checkpoint({fun}{policy})({names(args)})")


def derivative(w: Writer, scope: Scope) -> None:
    """`grad`, `value_and_grad`, `jvp` or `linearize` of a function."""
    how = w.one_of(("grad", "grad", "value_and_grad", "jvp", "linearize"))
    w.note(how)
    forward = how in ("jvp", "linearize")
    args = inputs(w, scope, 2, floats=True)
    inner = scope.inner(reverse=not forward, forward=forward)
    params = parameters(w, inner, args)
    block(w, inner, 3)
    outs = [v for v in some_results(w, inner) if v.is_float]
    fun = w.fresh("loss")
    w.function(scope, f"def {fun}({names(params)}):", inner, scalar(w, inner, [*outs, params[0]]))
    differentiate(w, scope, fun, args, how)


def differentiate(w: Writer, scope: Scope, fun: str, args: Sequence[Value], how: str) -> list[Value]:
    """A derivative of the scalar function `fun` at these arguments, bound to names."""
    value = Value("", (), "float32", 8.0)
    if how in ("jvp", "linearize"):
        tangents = packed([w.like(scope, a.shape, a.dtype) for a in args])
        text = f"jax.jvp({fun}, {packed(args)}, {tangents})"
        if how == "linearize":
            text = f"(lambda y, t: (y, t(*{tangents})))(*jax.linearize({fun}, {names(args)}))"
        return bind_results(w, scope, [value, value], text)
    positions = tuple(range(len(args))) if w.chance(0.5) else (0,)
    gradients = [Value("", args[i].shape, args[i].dtype, 8.0) for i in positions]
    made = [Value(w.fresh("v"), g.shape, g.dtype, 8.0) for g in gradients]
    call = f"jax.{how}({fun}, argnums={positions})({names(args)})"
    if how == "value_and_grad":
        loss = Value(w.fresh("v"), (), "float32", 8.0)
        scope.lines.append(f"{loss.name}, {packed(made)} = {call}")
        scope.values.append(loss)
    else:
        scope.lines.append(f"{packed(made)} = {call}")
    scope.values += made
    return made


def custom_jvp(w: Writer, scope: Scope) -> None:
    """A function with a forward rule that is not its true derivative: nothing may put the true one in its place."""
    w.note("custom_jvp")
    x, fun = w.floating(scope), w.fresh("rule")
    w.line(scope, "@jax.custom_jvp")
    w.line(scope, f"def {fun}(x):\n    return jnp.sin(x) * x")
    w.line(scope, f"{fun}.defjvp(lambda p, t: ({fun}(*p), 3 * t[0] * jnp.cos(p[0])))")
    w.let(scope, f"{fun}({x.name})", x.shape, x.dtype, x.bound)


def custom_vjp(w: Writer, scope: Scope) -> None:
    """A function with a backward rule of its own (a clipped gradient)."""
    w.note("custom_vjp")
    x, fun = w.floating(scope), w.fresh("rule")
    w.line(scope, "@jax.custom_vjp")
    w.line(scope, f"def {fun}(x):\n    return jnp.tanh(x) + 0.5 * x")
    w.line(scope, f"{fun}.defvjp(lambda x: ({fun}(x), x), lambda x, g: (jnp.clip(g, -0.25, 0.25) * jnp.cos(x),))")
    w.let(scope, f"{fun}({x.name})", x.shape, x.dtype, x.bound + 1)
