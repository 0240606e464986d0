"""Normal form: fewer equations, the same bits, and shared functions stay shared."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import ClosedJaxpr, Jaxpr, evaluate, jaxprs_in_params
from aerogel.compiler.judging.agree import compare
from aerogel.compiler.judging.check import check_program
from aerogel.compiler.normalize import drop_dead, normalize
from aerogel.compiler.program import count_equations, inner_jaxprs
from compiler.programs_of import bits, run, traced
from strategies import draw_program

X4 = np.linspace(-1, 1, 4, dtype=np.float32)
X = np.array([[1.5, -0.0, np.nan], [np.inf, 1e-40, -3.0]], np.float32)
K = np.array([[120, -128, 7], [1, 0, -1]], np.int8)


def names(program: ClosedJaxpr) -> list[str]:
    """The primitives of the outermost level."""
    return [eqn.primitive.name for eqn in program.jaxpr.eqns]


# Beyond the first 40, programs in which calls lose their other callers or a loop reads an array in two ways.
@pytest.mark.parametrize("seed", [*range(40), 187, 238, 243, 275, 280, 283, 289, 517, 552, 600])
def test_random_programs_keep_their_bits(seed: int) -> None:
    """Normal form changes no bit of a random program, has no more equations, and is its own normal form."""
    drawn = draw_program(seed)
    f, args = drawn.function(), drawn.args()
    program, arrays = traced(f, *args), [jnp.asarray(x) for x in jax.tree.leaves(args)]
    normal, _ = normalize(program)
    check_program(normal, program)
    assert count_equations(normal.jaxpr) <= count_equations(program.jaxpr)
    assert normalize(normal)[0] is normal
    # Operation by operation, so that XLA compiles both the same. It compiles loops and branches as a whole, and
    # rounds otherwise where one of them has an equation less.
    got, want = evaluate(normal, arrays), evaluate(program, arrays)
    if any(jaxprs_in_params(eqn.params) for eqn in normal.jaxpr.eqns):
        assert compare(got, want) == [], str(drawn)
    else:
        assert bits(got) == bits(want), str(drawn)


def large(x: Any) -> tuple[Any, Any]:
    """More equations than a call may have that is inlined for its size; two results that share none."""
    y = x
    for _ in range(30):
        x, y = jnp.sin(x), jnp.cos(y)
    return x, y


def twice_read(c: Any, y: Any) -> Any:
    """Equal sines of two inputs that are one."""
    return c + jnp.sin(y[0]), (jnp.sin(y[0]) * c, jnp.sin(y[1]) * c)


def chain(c: Any, y: Any) -> Any:
    """A carry that stays as it is once it is known that the other one does."""
    state, fixed, flag = c
    return (state + y * fixed, lax.select_n(flag, fixed, fixed + 1), lax.select(flag, flag, flag)), state


def side_by_side(c: Any, y: Any) -> Any:
    """Two states that do not concern each other."""
    return (c[0] + jnp.sin(y), c[1] * y), None


CALLED = jax.jit(large)
# What one change makes possible elsewhere; the primitives that are left at all levels: loops, calls, sines.
CASCADES: dict[str, tuple[Any, tuple[int, int, int]]] = {
    "an array read twice": (lambda x: lax.scan(twice_read, x[0], (x, x)), (1, 0, 1)),
    "an array read whole and by steps": (lambda x: lax.scan(lambda c, y: (c + y @ x, None), 0.0 * x[0], x), (1, 0, 0)),
    "an unchanged carry and another": (lambda x: lax.scan(chain, (x[0], x[0], np.bool_(False)), x), (1, 0, 0)),
    "a dead caller": (lambda x: (CALLED(x), CALLED(x + 1)[0])[1], (0, 0, 30)),
    "equal calls": (lambda x: CALLED(x)[0] * CALLED(x)[0], (0, 0, 30)),
    "callers of different results": (lambda x: CALLED(x)[0] + CALLED(x + 1)[1], (0, 0, 30)),
    "loops that differ in dead carries": (
        lambda x: lax.scan(side_by_side, (x[0], x[1]), x)[0][0] * lax.scan(side_by_side, (x[0], x[2]), x)[0][0],
        (1, 0, 1),
    ),
}


@pytest.mark.parametrize("name", CASCADES)
def test_one_change_leads_to_the_next(name: str) -> None:
    """What a change makes equal, dead or the only call is merged, dropped or inlined at once; then all is at rest."""
    f, want = CASCADES[name]
    square = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
    program = traced(f, square)
    normal, _ = normalize(program)
    check_program(normal, program)
    found = all_names(normal.jaxpr)
    assert tuple(found.count(primitive) for primitive in ("scan", "jit", "sin")) == want
    assert normalize(normal)[0] is normal
    assert compare(run(normal, square), run(program, square)) == []


def all_names(jaxpr: Jaxpr) -> list[str]:
    """The primitives of all levels."""
    return [n for e in jaxpr.eqns for n in (e.primitive.name, *(n for j in inner_jaxprs(e) for n in all_names(j)))]


# What JAX keeps whole until it lowers a program, in 0.12; a primitive of what it computes.
LATE: dict[str, tuple[Any, str]] = {
    "search": (lambda x: jnp.searchsorted(x[0], x), "scan"),
    "search under vmap": (jax.vmap(jnp.searchsorted), "scan"),
    "two searches": (lambda x: (jnp.searchsorted(x[0], x), jnp.searchsorted(x[1], x + 1)), "scan"),
    "interpolation": (lambda x: jnp.interp(x, x[0], x[1]), "scan"),
    "places": (lambda x: jnp.nonzero(x > 0, size=3), "cumsum"),
    "places in a loop": (lambda x: lax.map(lambda r: jnp.nonzero(r > 0, size=2), x), "cumsum"),
    "places in a branch": (
        lambda x: lax.cond(x[0, 0] < 0, lambda x: jnp.flatnonzero(x > 0, size=3), lambda x: jnp.zeros(3, int), x),
        "cumsum",
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_what_is_lowered_late_is_written_out(name: str) -> None:
    """A search, say, is no equation in which nothing can be found, at any level; two are calls of one function."""
    f, inside = LATE[name]
    square = np.sort(np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3))
    args = (square,) * (2 if "vmap" in name else 1)
    program = traced(f, *args)
    normal, _ = normalize(program)
    check_program(normal, program)
    found = all_names(normal.jaxpr)
    assert inside in found
    assert "call_hi_primitive" not in found
    assert found.count("jit") == (2 if name == "two searches" else 0)
    assert normalize(normal)[0] is normal
    assert bits(run(normal, *args)) == bits(run(program, *args))


def test_what_is_lowered_late_keeps_its_derivative() -> None:
    """A power of two is put into the bits of a number, through which JAX takes no derivative."""
    x = np.linspace(0.5, 2, 7, dtype=np.float32)
    scaled = lambda x: jnp.ldexp(x, 3) * jnp.frexp(x)[0] + jnp.interp(x, jnp.sort(x), x)  # noqa: E731
    normal, _ = normalize(traced(scaled, x))
    want = jax.vjp(scaled, x)[1](jnp.ones(7))[0]
    assert np.all(np.asarray(want) > 1)
    np.testing.assert_array_equal(jax.vjp(lambda x: evaluate(normal, [x])[0], x)[1](jnp.ones(7))[0], want)


IDENTITIES = {
    "cast": lambda x, k: x.astype(x.dtype) * 2,
    "reshape": lambda x, k: x.reshape(x.shape) * 2,
    "transpose": lambda x, k: lax.transpose(x, (0, 1)) * 2,
    "slice": lambda x, k: lax.slice(x, (0, 0), (2, 3)) * 2,
    "broadcast": lambda x, k: lax.broadcast_in_dim(x, (2, 3), (0, 1)) * 2,
    "sum over nothing": lambda x, k: lax.reduce_sum(x, ()) * 2,
    "select of equals": lambda x, k: lax.select(x > 0, x, x) * 2,
    "select known": lambda x, k: lax.select_n(jnp.bool_(True), k, k + 1) * 2,
    "folded overflow": lambda x, k: k * lax.add(jnp.int8(100), jnp.int8(100)),
    "repeated": lambda x, k: (x * 2) + (x * 2),
    "dead": lambda x, k: (jnp.sin(x), x * 2)[1],
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_does_nothing_goes(name: str) -> None:
    """Bits stay, nan, infinities, -0, subnormals and overflow included; one or two equations are left."""
    program = traced(IDENTITIES[name], X, K)
    normal, _ = normalize(program)
    assert len(normal.jaxpr.eqns) <= 2
    assert bits(run(normal, X, K)) == bits(run(program, X, K))


def test_what_looks_alike_stays_apart() -> None:
    """0.0 and -0.0 are two literals; another type, a new draw and a barrier are not the same again."""
    program = traced(lambda x: (x * 0.0, x * -0.0), X)
    assert names(normalize(program)[0]) == ["mul", "mul"]
    program = traced(lambda x: (lax.optimization_barrier(x), lax.optimization_barrier(x)), X)
    assert len(normalize(program)[0].jaxpr.eqns) == 2
    program = traced(lambda x: (x.astype(jnp.bfloat16), x.astype(jnp.float16)), X)
    assert len(normalize(program)[0].jaxpr.eqns) == 2
    narrowed = traced(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), X)
    assert len(normalize(narrowed)[0].jaxpr.eqns) == 2


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1e-40, np.inf, -np.inf, np.nan], np.float32)
TIES: dict[str, tuple[Any, str]] = {
    "largest": (lambda x, y: x == jnp.maximum(x, y), "ge"),
    "smallest": (lambda x, y: x == jnp.minimum(x, y), "le"),
    "second operand": (lambda x, y: y == jnp.maximum(x, y), "ge"),
    "turned round": (lambda x, y: jnp.maximum(x, y) == x, "ge"),
    "number": (lambda x, y: lax.eq(jnp.maximum(x, 0.0), x), "ge"),
    "found twice": (lambda x, y: jnp.maximum(x, y) == jnp.maximum(x, y) * 1 + 0 * y, "eq"),
    "of another": (lambda x, y: x == jnp.maximum(y, y * 2), "eq"),
    "of integers": (lambda x, y: x.astype(int) == jnp.maximum(x.astype(int), y.astype(int)), "ge"),
    "complex": (lambda x, y: (x + 0j) == lax.max(x + 0j, y + 0j), "eq"),
}


@pytest.mark.parametrize("name", TIES)
def test_which_operand_an_extremum_is(name: str) -> None:
    """Its operands are compared, not one with the extremum: bit for bit the same, of nan and zeros too."""
    f, test = TIES[name]
    x, y = (a.reshape(-1) for a in np.meshgrid(SPECIAL, SPECIAL))
    program = traced(f, x, y)
    assert names(program).count("eq") == 1
    normal, _ = normalize(program)
    assert [n for n in names(normal) if n in ("eq", "ge", "le")] == [test]
    check_program(normal, program)
    assert bits(run(normal, x, y)) == bits(run(program, x, y))


def compare_extrema(jaxpr: Jaxpr) -> list[bool]:
    """Whether it is an extremum that is compared, of every comparison of all levels."""
    extrema = [v for e in jaxpr.eqns if e.primitive.name in ("max", "min") for v in e.outvars]
    tests = [e for e in jaxpr.eqns if e.primitive.name in ("eq", "ge", "gt")]
    here = [any(x is v for x in e.invars for v in extrema) for e in tests]
    return here + [yes for e in jaxpr.eqns for j in inner_jaxprs(e) for yes in compare_extrema(j)]


def test_the_gradient_of_an_extremum_compares_its_operands() -> None:
    """In loops too, where XLA may round an operand in one way as a part of the maximum and in another beside it."""

    def f(x: Any) -> Any:
        return lax.scan(lambda c, y: (jnp.maximum(0.9 * c + 0.1 * y, c - y * y), None), x, jnp.ones((3, 4)))[0].sum()

    program = traced(jax.grad(f), X4)
    is_older = jax.__version_info__ < (0, 12)  # 0.12 asks of the operands which is larger, and whether they are equal
    assert compare_extrema(program.jaxpr) == [is_older] * 4
    found = compare_extrema(normalize(program)[0].jaxpr)
    assert found
    assert not any(found)
    assert len(found) == 2 or not is_older


@pytest.mark.parametrize("operation", [lax.add, lax.mul, lax.bitwise_xor, lax.eq])
def test_operands_in_another_order_are_the_same(operation: Any) -> None:
    """What may be exchanged is computed once; a difference may not."""
    x, y = jnp.arange(12), jnp.arange(12)[::-1] * 3
    program, arrays = traced(lambda x, y: (operation(x, y), operation(y, x)), x, y), [x, y]
    normal, _ = normalize(program)
    assert len(normal.jaxpr.eqns) == 1
    assert bits(evaluate(normal, arrays)) == bits(evaluate(program, arrays))
    kept, _ = normalize(traced(lambda x, y: (x - y, y - x, lax.max(x, y), lax.max(y, x)), x, y))
    assert len(kept.jaxpr.eqns) == 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_derivative_of_a_square_is_a_product(dtype: str) -> None:
    """`x * y + y * x` is `2 * (x * y)`, to the bit, infinities, zeros and nan included."""
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray([0.0, -0.0, 1.1, -3.3, 6e4, np.inf, np.nan, 1e-7], dtype)
        program = traced(lambda x: jax.grad(lambda x: jnp.sum(jnp.cos(x * x)))(x), x)
        normal, _ = normalize(program)
        assert "add_any" in names(program)
        assert "add_any" not in names(normal)
        assert bits(evaluate(normal, [x])) == bits(evaluate(program, [x]))


def test_a_sum_with_itself_stays() -> None:
    """As it is written; of complex numbers, twice an infinite part is no number where the other part is a zero."""
    x = jnp.asarray([1.0, 2.0])
    assert names(normalize(traced(lambda x: x + x, x))[0]) == ["add"]
    square = traced(lambda x: jax.vjp(lambda x: x * x, x)[1](x)[0], x.astype("complex64"))
    assert "add_any" in names(normalize(square)[0])


def test_weak_types_are_kept() -> None:
    """A cast that only makes a type strong is no identity."""
    program = traced(lambda x: lax.convert_element_type(x, jnp.float32), 2.0)
    assert run(normalize(program)[0], 2.0)[0].weak_type is False


def test_effects_stay_in_order_and_number() -> None:
    """Two equal prints stay two."""

    def f(x: Any) -> Any:
        jax.debug.print("{}", x[0, 0])
        jax.debug.print("{}", x[0, 0])
        return x + 1

    before, after = (sum(bool(e.effects) for e in p.jaxpr.eqns) for p in (traced(f, X), normalize(traced(f, X))[0]))
    assert before == after == 2


def test_a_static_start_is_a_slice() -> None:
    """`dynamic_slice` at literals is the slice it clamps to."""
    for start in (0, 1, 5):
        program = traced(
            lambda x, at=start: lax.dynamic_slice_p.bind(x, np.int32(at), np.int32(1), slice_sizes=(1, 2)), X
        )
        assert names(program) == ["dynamic_slice"]
        normal, _ = normalize(program)
        assert names(normal) == ["slice"]
        assert bits(run(normal, X)) == bits(run(program, X))


def calls_of(jaxpr: Jaxpr) -> list[Any]:
    """The jaxprs of all calls, nested ones too."""
    found: list[Any] = []
    for eqn in jaxpr.eqns:
        inner = list(jaxprs_in_params(eqn.params))
        if eqn.primitive.name == "jit":
            found += inner
        for one in inner:
            found += calls_of(getattr(one, "jaxpr", one))
    return found


def test_a_function_called_twice_stays_one() -> None:
    """A large function with two callers stays one object and is lowered once; with one caller it goes."""

    @jax.jit
    def inner(x: Any) -> Any:
        for _ in range(30):
            x = jnp.sin(x) + x.astype(x.dtype)
        return x

    def f(x: Any) -> Any:
        return inner(x) + lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]

    normal, _ = normalize(traced(f, X))
    found = calls_of(normal.jaxpr)
    assert len(found) == 2
    assert len({id(getattr(one, "jaxpr", one)) for one in found}) == 1
    assert calls_of(normalize(traced(lambda x: inner(x) * 2, X))[0].jaxpr) == []


def test_diagonals_are_no_calls_and_choose_nothing() -> None:
    """`jnp.diag` called twice is what it is outside of TPU kernels, twice: passes see through it."""

    def f(x: Any) -> Any:
        y = jnp.exp(x @ x.T)
        total = jnp.sum(lax.scan(lambda c, _: (c * 0.5, c), x, None, length=9)[1])  # so that something is rewritten
        return jnp.diag(y).sum() + jnp.diag(y * y.T).sum() + total

    x = jax.random.normal(jax.random.key(0), (300, 20)) / 5
    assert "platform_index" in str(jax.make_jaxpr(f)(x))
    assert "platform_index" not in str(jax.make_jaxpr(ag.optimize(f))(x))
    np.testing.assert_allclose(ag.optimize(f)(x), f(x), rtol=1e-5)


def test_dead_code_goes_from_bodies_too() -> None:
    """The equations of a level stay as many, those of a loop in it become fewer; nothing dead, the same object."""

    def f(x: Any) -> Any:
        return lax.scan(lambda c, v: (jnp.sin(c + v), (jnp.cos(c), jnp.exp(c))), jnp.float32(0), x)[1][0]

    before = traced(f, X[0]).jaxpr
    after = drop_dead(before)
    assert len(after.eqns) == len(before.eqns)
    assert count_equations(after) == count_equations(before) - 1
    assert drop_dead(after) is after


TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@jax.jit
def looked_up(x: Any) -> Any:
    """A function that closes over an array, and over one by a function that it calls."""
    return jnp.tanh(x @ jnp.asarray(TABLE)) + shifted(x)


@jax.jit
def shifted(x: Any) -> Any:
    """A function that closes over a part of the same array."""
    column = jnp.asarray(TABLE[:, 0])
    for _ in range(15):
        x = jnp.sin(x * column)
    return x.sum()


def test_calls_do_not_close_over_arrays() -> None:
    """Called once, a function is inlined with its arrays; called twice, it is one function that is given them."""
    once = normalize(traced(lambda x: looked_up(x) * 2, X4))[0]
    assert "jit" not in {eqn.primitive.name for eqn in once.jaxpr.eqns}
    twice = normalize(traced(lambda x: looked_up(x) + looked_up(x + 1), X4))[0]
    calls = [eqn for eqn in twice.jaxpr.eqns if eqn.primitive.name == "jit"]
    assert len({id(eqn.params["jaxpr"]) for eqn in calls}) < len(calls)
    assert not any(eqn.params["jaxpr"].consts for eqn in calls)
    assert len(twice.consts) == 2
    assert normalize(twice)[0] is twice
    f = lambda x: jax.grad(lambda x: (looked_up(x) * looked_up(2 * x)).sum())(x)  # noqa: E731
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(X4), f(X4), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(ag.optimize(f))(X4[None]), f(X4)[None], rtol=1e-5)


@jax.jit
def turned(x: Any) -> Any:
    """As many entries as it is given, of arrays that it closes over."""
    return jnp.tanh(x @ jnp.asarray(TABLE[:, :1] * TABLE[:, 1])) + shifted(x) / 4


@jax.jit
def halved(x: Any) -> Any:
    """A function of another array."""
    return x @ jnp.asarray(np.eye(4, dtype=np.float32) / 2)


PLACES_OF_CALLS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda x: lax.scan(lambda c, _: (jnp.sin(turned(c)), turned(c)), x, None, length=3)[1].sum(0),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda _, c: turned(c) / 2, x),
    "both parts of a while": lambda x: lax.while_loop(
        lambda c: (c[0] < 2) & (turned(c).sum() < 9), lambda c: c + 1 + turned(c) / 9, x
    ),
    "one branch": lambda x: lax.cond(x[0] > 0, turned, jnp.cos, x),
    "branches with other arrays": lambda x: lax.switch(1, [turned, halved, jnp.cos], x),
    "checkpoint": lambda x: jax.checkpoint(turned)(x) * 2,
    "a loop in a loop": lambda x: lax.fori_loop(
        0, 2, lambda _, c: lax.fori_loop(0, 2, lambda _, c: turned(c) / 2, c), x
    ),
    "a loop beside a call": lambda x: lax.fori_loop(0, 3, lambda _, c: turned(c) / 2, turned(x)) + halved(x),
    "two in a step": lambda x: lax.fori_loop(0, 3, lambda _, c: turned(c) / 2 + turned(c + 1), x),
}


def calls_with_arrays(jaxpr: Jaxpr) -> int:
    """How many programs in a program close over arrays."""
    inner = [x for eqn in jaxpr.eqns for x in jaxprs_in_params(eqn.params)]
    return sum(bool(x.constvars) + calls_with_arrays(x) for x in inner)


@pytest.mark.parametrize("place", PLACES_OF_CALLS)
def test_calls_in_loops_and_branches_do_not_close_over_arrays(place: str) -> None:
    """Loops and branches hand the arrays on; what is made of it is differentiated and batched as before."""
    f = PLACES_OF_CALLS[place]
    program = traced(f, X4)
    assert calls_with_arrays(program.jaxpr)
    normal = normalize(program)[0]
    assert not calls_with_arrays(normal.jaxpr)
    assert normalize(normal)[0] is normal
    got = jax.jit(ag.optimize(f))(X4)
    np.testing.assert_allclose(got, f(X4), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(ag.optimize(f))(X4[None]), f(X4)[None], rtol=1e-5)
    if place != "both parts of a while":
        of = lambda f: jax.jit(jax.grad(lambda x: jnp.sin(f(x)).sum()))(X4)  # noqa: E731
        np.testing.assert_allclose(of(ag.optimize(f)), of(f), rtol=1e-4, atol=1e-6)


def test_what_is_still_to_be_reduced_over_devices_stays_a_sum() -> None:
    """A derivative adds such a value to itself; JAX raises where it would be multiplied."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.reshard(np.ones((2, 2), np.float32), jax.sharding.PartitionSpec(reduced=frozenset({"x"})))
        program = jax.make_jaxpr(jax.grad(lambda x: (x + x).sum()))(x)
        normal, _ = normalize(program)
    assert "add_any" in [eqn.primitive.name for eqn in normal.jaxpr.eqns]
