"""Writes under a mask stay in place: what is found, what is left, and the same bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel._jax import Jaxpr, jaxprs_in_params
from aerogel.compiler.passes.equal_cases import EqualCases
from aerogel.compiler.passes.in_place import InPlace
from compiler.loop_patterns import normal
from compiler.programs_of import bits

N, LANES = 48, 3
X = jnp.asarray(normal(0, LANES, N))
START = jnp.array([0, N - 2, 5], jnp.int32)


def alone(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`f` with this pass alone, after the one that lets it see what the branches of a `cond` are given."""
    return ag.optimize(f, passes=(EqualCases(), InPlace()), **options)


def whole(f: Callable[..., Any], *args: Any) -> int:
    """How many equations select whole buffers, in loops whose lanes stop one by one each carry included."""

    def count(jaxpr: Jaxpr) -> int:
        total = 0
        for eqn in jaxpr.eqns:
            large = [v for v in eqn.outvars if getattr(v.aval, "size", 0) >= N * LANES]
            if eqn.primitive.name == "select_n":
                total += len(large)
            if eqn.primitive.name == "while" and eqn.params["cond_jaxpr"].out_avals[0].shape:
                total += len(large)
            total += sum(count(getattr(j, "jaxpr", j)) for j in jaxprs_in_params(eqn.params))
        return total

    return count(jax.make_jaxpr(f)(*args).jaxpr)


def until_full(write: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A loop over the places of a buffer, from one on, mapped over buffers and places: each lane has a length."""

    def f(i: Any, x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < N, lambda s: (s[0] + 1, write(*s)), (i, x))

    return jax.vmap(f)


def if_even(write: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A loop over all places that writes at some, mapped over buffers and places to start from."""

    def f(i: Any, x: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            i, x = s
            return (i + 1, lax.cond(i % 2 == 0, write, lambda i, x: x, i, x)), None

        return lax.scan(step, (i, x), None, length=9)[0]

    return jax.vmap(f)


def swapped(i: Any, x: Any) -> Any:
    """Two places change their values."""
    j = (7 * i) % N
    return x.at[i].set(x[j]).at[j].set(x[i])


def reserved(i: Any, x: Any) -> Any:
    """A buffer of keys is written."""
    return x.at[i].set(jax.random.fold_in(x[i], 1))


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda i, x: x.at[i].set(jnp.sin(x[i]) + i),
    "add": lambda i, x: x.at[i].add(-0.0 * i),
    "slice": lambda i, x: lax.dynamic_update_slice(x, jnp.sin(x[:3]), (i,)),
    "beyond the end": lambda i, x: x.at[i + 3].set(1.0),
    "several places": lambda i, x: x.at[jnp.array([3, 3, 5]) + i].set(jnp.sin(x[0])),
    "two places": swapped,
    "multiply": lambda i, x: x.at[i].multiply(-0.5 * i),
    "multiply, clipped": lambda i, x: x.at[i + 3].multiply(2.0, mode="clip"),
    "largest": lambda i, x: x.at[i].max(0.1 * i),
    "smallest": lambda i, x: x.at[i].min(0.1 * i, mode="promise_in_bounds"),
    "subtract": lambda i, x: x.at[i].subtract(0.0 * i),
    "apply": lambda i, x: x.at[i].apply(jnp.sin),
}
LOOPS: dict[str, Callable[..., Any]] = {"while": until_full, "cond": if_even}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_masked_write_is_in_place(loop: str, write: str) -> None:
    """No step selects between whole buffers any more; not a bit changes, a negative zero's included."""
    f = LOOPS[loop](WRITES[write])
    x = X.at[:, ::5].set(-0.0)
    assert whole(f, START, x) > 0
    assert whole(alone(f), START, x) == 0
    assert bits(jax.tree.leaves(jax.jit(alone(f))(START, x))) == bits(jax.tree.leaves(jax.jit(f)(START, x)))


def reads(f: Callable[..., Any], *args: Any) -> int:
    """How many equations read places of a buffer by indices, in loops too."""

    def count(jaxpr: Jaxpr) -> int:
        names = [eqn.primitive.name for eqn in jaxpr.eqns]
        inner = [getattr(j, "jaxpr", j) for eqn in jaxpr.eqns for j in jaxprs_in_params(eqn.params)]
        return names.count("gather") + names.count("dynamic_slice") + sum(map(count, inner))

    return count(jax.make_jaxpr(f)(*args).jaxpr)


OWN_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "one": lambda i, x: x.at[i].set(1.0 * i),
    "several": lambda i, x: x.at[jnp.array([0, 9, 3]) + i].set(jnp.sin(1.0 * i)),
    "a narrow index": lambda i, x: x.at[i.astype(jnp.int8)].set(2.0),
    "beyond the end": lambda i, x: x.at[i + 3].set(1.0),
}


@pytest.mark.parametrize("write", OWN_PLACES)
def test_what_is_not_written_goes_beyond_the_end(write: str) -> None:
    """A lane that has an index of its own and is not to be written is given one at which writes are dropped."""
    f = until_full(OWN_PLACES[write])
    assert whole(f, START, X) > 0
    assert whole(alone(f), START, X) == reads(alone(f), START, X) == 0
    assert bits(jax.tree.leaves(jax.jit(alone(f))(START, X))) == bits(jax.tree.leaves(jax.jit(f)(START, X)))


def test_an_index_that_has_no_such_place_is_not_used() -> None:
    """Of 256 places an index of 8 bits has none beyond the end: what stands there is read, and put back."""
    x = jnp.zeros((LANES, 256))
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    f = until_full(lambda i, x: lax.scatter(x, i.astype(jnp.uint8)[None], 1.0 * i, numbers, mode="drop"))
    assert whole(alone(f), START, x) == 0
    assert reads(alone(f), START, x) > 0
    assert bits(jax.tree.leaves(jax.jit(alone(f))(START, x))) == bits(jax.tree.leaves(jax.jit(f)(START, x)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.uint16, jnp.float8_e4m3fn])  # the last has no infinity
@pytest.mark.parametrize("write", ["multiply", "max", "min", "subtract"])
def test_types_of_other_scatters(dtype: Any, write: str) -> None:
    """What changes nothing is 1, the largest or the smallest value of a type."""
    f = if_even(lambda i, x: getattr(x.at[i], write)(jnp.asarray(3, dtype)))
    x = (10 * abs(X)).astype(dtype).at[:, 3].set(jnp.nan if dtype == jnp.bfloat16 else 0)
    assert whole(alone(f), START, x) == 0
    assert bits(jax.tree.leaves(jax.jit(alone(f))(START, x))) == bits(jax.tree.leaves(jax.jit(f)(START, x)))


def test_an_infinite_complex_number_is_not_multiplied_by_one() -> None:
    """It would become no number: the buffer is selected as a whole."""
    f = until_full(lambda i, x: x.at[i].multiply(2j))
    x = X.astype(jnp.complex64).at[:, 4].set(jnp.inf)
    assert whole(alone(f), START, x) > 0
    np.testing.assert_array_equal(*(np.asarray(jax.jit(g)(START, x)[1]) for g in (alone(f), f)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, bool, jnp.complex64])
def test_types(dtype: Any) -> None:
    """Buffers of all types are written under a mask, and so are keys."""
    f = until_full(lambda i, x: x.at[i].set(x[i - 1]))
    assert whole(alone(f), START, X.astype(dtype)) == 0
    for got, want in zip(*(jax.jit(g)(START, X.astype(dtype)) for g in (alone(f), f)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_keys() -> None:
    """Buffers of keys too."""
    keys = jax.random.split(jax.random.key(0), (LANES, N))
    f = until_full(reserved)
    assert whole(alone(f), START, keys) == 0
    assert bits(jax.jit(alone(f))(START, keys)) == bits(jax.jit(f)(START, keys))


def batched_twice(i: Any, x: Any) -> Any:
    """Lanes along two axes, the second one of the buffer in front of its own."""
    f = jax.vmap(until_full(WRITES["set"]), in_axes=(0, 1))
    return f(jnp.stack([i, i + 1]), jnp.stack([x, 2.0 * x], 1))


def some_of_three(i: Any, x: Any) -> Any:
    """Branches that write at other places, and one that does not."""

    def f(i: Any, x: Any) -> Any:
        branches = (lambda x: x, lambda x: x.at[0].set(1.0), lambda x: x.at[3].set(2.0))
        return lax.fori_loop(0, 5, lambda k, x: lax.switch((i + k) % 3, branches, x), x)

    return jax.vmap(f)(i, x)


def masked_by_hand(_: Any, x: Any) -> Any:
    """A selection of the user's, of lanes and of a number."""
    x = jnp.where((x[:, 0] > 0)[:, None], x.at[:, 3].set(1.0), x)
    return jnp.where(x[0, 0] > 0, x, lax.dynamic_update_slice(x, x[:, :2], (0, 7)))


SPELLINGS: dict[str, Callable[[Any, Any], Any]] = {
    "two axes of lanes": batched_twice,
    "a switch": some_of_three,
    "by hand": masked_by_hand,
    "a bound": jax.vmap(lambda i, x: lax.fori_loop(0, i, lambda k, x: x.at[k].add(x[k]), x)),
    "in a branch": lambda i, x: lax.cond(i[0] > 3, until_full(WRITES["set"]), lambda i, x: (i, x), i, x),
    "rows": lambda i, x: until_full(lambda i, x: x.at[i].set(x[i - 1] + 1))(i, x[..., None] * jnp.ones(5)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings(name: str) -> None:
    """Found too, and the bits stay."""
    f = SPELLINGS[name]
    assert whole(f, START, X) > whole(alone(f), START, X) == 0
    assert bits(jax.tree.leaves(jax.jit(alone(f))(START, X))) == bits(jax.tree.leaves(jax.jit(f)(START, X)))


LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "the written buffer is read": until_full(lambda i, x: (lambda y: y.at[0].set(y[i]))(x.at[i].set(1.0))),
    "all is written": until_full(lambda i, x: x + 1),
    "much is written": until_full(lambda i, x: lax.dynamic_update_slice(x, x[: N // 2], (i,))),
    "another buffer": lambda i, x: jnp.where((i > 3)[:, None], x.at[:, 0].set(1.0), 2.0 * x),
    "a mask of entries": lambda i, x: jnp.where(x > 0, x.at[:, 0].set(1.0), x),
    "a function is applied, clipped": until_full(lambda i, x: x.at[i].apply(jnp.cos, mode="clip")),
    "a mask along the place": lambda i, x: jnp.where(x[0] > 0, x.at[:, 0].set(1.0), x),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_choices_are_left(name: str) -> None:
    """The same program."""
    f = LEFT[name]
    assert whole(f, START, X) == whole(alone(f), START, X) > 0
    assert str(jax.make_jaxpr(alone(f))(START, X)) == str(jax.make_jaxpr(f)(START, X))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(WRITES)), st.integers(1, 9)), min_size=1, max_size=3))
def test_writes_in_any_order(chosen: list[tuple[str, int]]) -> None:
    """Steps of several writes in turn, each under a condition of its own."""

    def write(i: Any, x: Any) -> Any:
        for name, every in chosen:
            x = lax.cond(i % every == 0, WRITES[name], lambda i, x: x, i, x)
        return x

    f = until_full(write)
    assert bits(jax.tree.leaves(jax.jit(alone(f))(START, X))) == bits(jax.tree.leaves(jax.jit(f)(START, X)))


def test_before_and_after_differentiation() -> None:
    """A masked write has the gradient of the choice, whichever comes first."""
    f = lambda i, x: jnp.sin(if_even(lambda i, x: x.at[i].set(x[i - 1] * x[i]))(i, x)[1]).sum()  # noqa: E731
    want = jax.jit(jax.grad(f, 1))(START, X)
    for g in (jax.grad(alone(f), 1), alone(jax.grad(f, 1))):
        np.testing.assert_allclose(jax.jit(g)(START, X), want, rtol=1e-5, atol=1e-6)
    got, want = (jax.jit(jax.jvp, static_argnums=0)(lambda x, g=g: g(START, x), (X,), (X,)) for g in (alone(f), f))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_nothing_to_write() -> None:
    """Buffers without entries and lanes without buffers go through."""
    for f, args in (
        (until_full(WRITES["set"]), (START[:0], X[:0])),
        (jax.vmap(lambda i: lax.while_loop(lambda i: i < N, lambda i: i + 1, i)), (START,)),
    ):
        assert bits(jax.tree.leaves(jax.jit(alone(f))(*args))) == bits(jax.tree.leaves(jax.jit(f)(*args)))
