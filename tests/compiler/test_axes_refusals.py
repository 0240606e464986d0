"""What mapped axes must refuse: never wrong, always with a reason."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from aerogel._jax import Primitive, ShapedArray, primitives
from aerogel.compiler.axes import Axis, Mapped, No, Reduced, along, along_output, has_entry, known_primitives

from .axes_cases import CASES
from .test_axes_nested import CASES as NESTED

X = jnp.ones((3, 4))
CUBE = jnp.ones((2, 3, 4))


def _last(fun: Callable[..., Any], *args: Any) -> Any:
    return jax.make_jaxpr(fun)(*args).jaxpr.eqns[-1]


ALONG_THE_AXIS = {
    "cumsum": lambda x: lax.cumsum(x, 0),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 0),
    "sort": lambda x: lax.sort(x, dimension=0),
    "top_k": lambda x: lax.top_k(x, 2, axis=0),
    "rev": lambda x: lax.rev(x, (0,)),
    "slice": lambda x: lax.slice(x, (1, 0), (3, 4)),
    "strided slice": lambda x: lax.slice(x, (0, 0), (3, 4), (2, 1)),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (1, 0), (2, 4)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, jnp.zeros((1, 2)), (1, 0)),
    "pad": lambda x: lax.pad(x, 0.0, ((1, 0, 0), (0, 0, 0))),
    "concatenate": lambda x: lax.concatenate([x, x], 0),
    "split": lambda x: lax.split(x, (1, 2), axis=0),
    "tile": lambda x: lax.tile_p.bind(x, reps=(2, 1)),
    "fft": lambda x: lax.fft_p.bind(x.T, fft_type=lax.FftType.RFFT, fft_lengths=(3,)),
    "reduce": lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * a, (0,)),
    "reduce_window": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "VALID"),
    "cholesky": lambda x: lax.linalg.cholesky_p.bind(x @ x.T),
    "gather": lambda x: x[jnp.array([0, 2])],
    "scatter-add": lambda x: x.at[jnp.array([0, 2])].add(1.0),
    "unstack": lambda x: lax.unstack_p.bind(x, axis=0),
}


@pytest.mark.parametrize("name", ALONG_THE_AXIS)
def test_refuses_what_mixes_along_the_axis(name: str) -> None:
    """An operation that looks from one index to another is not one computation per index."""
    eqn = _last(ALONG_THE_AXIS[name], X)
    shape = eqn.invars[0].aval.shape
    known = {i: Axis(shape.index(3)) for i, v in enumerate(eqn.invars) if v is eqn.invars[0]}
    answer = along(eqn, known, 3)
    assert isinstance(answer, No)
    assert len(answer.reason.split()) > 3


def test_refuses_a_reshape_that_cuts_the_axis() -> None:
    """[6] -> [2, 3] leaves no single dimension for an axis of length 6, nor [2, 3] -> [3, 2] for the first of them."""
    eqn = _last(lambda x: lax.reshape(x, (2, 3)), jnp.ones(6))
    assert isinstance(along(eqn, {0: Axis(0)}, 6), No)
    eqn = _last(lambda x: lax.reshape(x, (3, 2)), jnp.ones((2, 3)))
    assert isinstance(along(eqn, {0: Axis(0)}, 2), No)
    assert isinstance(along_output(eqn, {0: Axis(0)}, 3), No)
    # 6 = 3 * 2 could hold the axis by its size alone, but its entries are not where the axis' ones were.
    eqn = _last(lambda x: lax.reshape(x, (6, 2)), jnp.ones((2, 2, 3)))
    assert isinstance(along(eqn, {0: Axis(1)}, 2), No)


def test_refuses_a_running_sum_over_a_merged_dimension() -> None:
    """Merging the axis with another dimension does not hide that the sum runs through it, on either side."""
    eqn = _last(lambda x: lax.cumsum(x, 0), jnp.ones(12))
    for axis in (Axis(0, outer=4), Axis(0, inner=4), Axis(0, outer=2, inner=2)):
        assert isinstance(along(eqn, {0: axis}, 3), No)


def test_refuses_the_axis_in_two_places() -> None:
    """`x + x.T` and `x @ x` meet the axis in different dimensions; `x + x` does not."""
    square = jnp.ones((3, 3))
    eqn = _last(lambda x, y: x + y, square, square)
    assert isinstance(along(eqn, {0: Axis(0), 1: Axis(1)}, 3), No)
    assert isinstance(along(_last(lambda x: x @ x, square), {0: Axis(0), 1: Axis(0)}, 3), No)
    assert isinstance(along(_last(lambda x: x + x, square), {0: Axis(0), 1: Axis(0)}, 3), Mapped)
    mixed = _last(lambda x, y: x + y, jnp.ones(6), jnp.ones(6))
    assert isinstance(along(mixed, {0: Axis(0, outer=2), 1: Axis(0, inner=2)}, 3), No)


def test_refuses_unknown_primitives() -> None:
    """A primitive that nobody described is nothing in particular, even if it looks elementwise."""
    mystery = Primitive("mystery")
    mystery.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
    eqn = _last(mystery.bind, X)
    assert along(eqn, {0: Axis(0)}, 3) == No("unknown primitive `mystery`")
    assert along_output(eqn, {0: Axis(0)}, 3) == No("unknown primitive `mystery`")
    assert not has_entry(mystery)


def test_a_name_is_not_a_primitive() -> None:
    """A user's primitive that has the name of one of JAX's is still unknown."""
    impostor = Primitive("add")
    impostor.def_abstract_eval(lambda x, y: x)
    assert isinstance(along(_last(impostor.bind, X, X), {0: Axis(0)}, 3), No)


def test_refuses_effects_and_shardings() -> None:
    """What prints, and what fixes the sharding of its result, stays as it is."""
    printing = next(e for e in jax.make_jaxpr(lambda x: jax.debug.callback(lambda y: None, x))(X).jaxpr.eqns)
    assert isinstance(along(printing, {0: Axis(0)}, 3), No)
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        eqn = _last(lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1, 2), out_sharding=PartitionSpec()), X)
        assert isinstance(along(eqn, {0: Axis(0)}, 3), No)


def test_refuses_keys_that_are_drawn_from_as_a_batch() -> None:
    """The bits of a batch of rbg keys are not those of its keys alone."""
    eqn = jax.make_jaxpr(jax.vmap(lambda k: jax.random.bits(k, (2,))))(
        jax.random.split(jax.random.key(0, impl="rbg"), 3)
    )
    answer = along(eqn.jaxpr.eqns[-1], {0: Axis(0)}, 3)
    assert isinstance(answer, No)
    assert "rbg" in answer.reason


def test_grouped_convolutions_do_not_pass_their_features() -> None:
    """The features of a grouped convolution are tied to each other by the groups."""
    fun = lambda x, w: lax.conv_general_dilated(  # noqa: E731
        x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
    )
    eqn = _last(fun, jnp.ones((3, 4, 4)), jnp.ones((2, 2, 4)))
    assert isinstance(along(eqn, {0: Axis(2)}, 4), No)
    assert isinstance(along(eqn, {1: Axis(2)}, 4), No)
    assert isinstance(along(eqn, {0: Axis(0)}, 3), Mapped)


def test_every_entry_is_judged() -> None:
    """Every primitive in the table is the subject of a case that runs on numbers."""
    subjects = {case.primitive for case in [*CASES, *NESTED]}
    # Judged by name in test_axes_parts.py and test_axes_nested.py: no inputs, and two answers each.
    elsewhere = {"iota", "custom_jvp_call", "custom_vjp_call"}
    # Other tests declare primitives of their own.
    assert subjects | elsewhere == set(known_primitives()) & set(primitives)


def test_questions_without_an_axis_have_an_answer() -> None:
    """Nothing varies: the equation is itself, whole."""
    eqn = _last(lambda x: x + 1, X)
    answer = along(eqn, {}, 3)
    assert isinstance(answer, Mapped)
    assert answer.outs == (None,)
    assert not isinstance(answer, Reduced)
