"""The parts around the table: blocks, monoids, creation, accumulators, linearity, declarations, speed."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from aerogel._jax import Primitive, ShapedArray
from aerogel.compiler.axes import (
    Axis,
    Mapped,
    Monoid,
    No,
    Reduced,
    along,
    along_output,
    declare,
    linear_in,
    linear_together,
    stack_blocks,
    take_block,
)
from aerogel.compiler.axes.monoid import ADD, AND, ARGMAX, ARGMIN, MAX, MIN, MUL, OR, XOR
from aerogel.compiler.axes.reshape import follow

from .axes_judge import cut, judge, judge_mapped, judge_reduced, same


def _last(fun: Any, *args: Any) -> Any:
    return jax.make_jaxpr(fun)(*args).jaxpr.eqns[-1]


AXES = st.builds(
    lambda before, after, outer, inner, length: (
        (*before, outer * length * inner, *after),
        Axis(len(before), outer, inner),
        length,
    ),
    st.lists(st.integers(0, 2), max_size=2),
    st.lists(st.integers(0, 2), max_size=2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 4),
)


@given(AXES, st.booleans())
def test_blocks_put_together_are_the_whole(place: Any, traced: bool) -> None:
    """`take_block` is NumPy's slice of the split dimension; `stack_blocks` of all equal blocks undoes it."""
    shape, axis, length = place
    x = jnp.arange(np.prod(shape, dtype=int)).reshape(shape)
    for size in (s for s in range(1, length + 1) if length % s == 0):
        starts = range(0, length, size)
        blocks = [take_block(x, axis, length, jnp.int32(t) if traced else t, size) for t in starts]
        for t, block in zip(starts, blocks, strict=True):
            same(block, cut(x, axis, length, t, size), f"block {t}+{size}")
        same(stack_blocks(jnp.stack(blocks), axis, length), x, "stacked")
    if length == 0:
        same(stack_blocks(jnp.zeros((0, *axis.resize(shape, 1)), x.dtype), axis, 0), x, "no blocks")


def test_leading_blocks_are_not_transposed() -> None:
    """Stacked blocks of a leading axis are the whole already."""
    text = str(jax.make_jaxpr(lambda b: stack_blocks(b, Axis(0), 6))(jnp.ones((3, 2, 5))))
    assert "reshape" in text
    assert "transpose" not in text


def test_blocks_of_keys() -> None:
    """Typed keys are cut and stacked like any array."""
    keys = jax.random.split(jax.random.key(0), 6)
    block = take_block(keys, Axis(0, outer=2), 3, 1, 2)
    same(block, keys[jnp.array([1, 2, 4, 5])], "keys")


@given(AXES, st.data())
def test_reshape_follows_the_axis(place: Any, data: st.DataObject) -> None:
    """Where the axis is found after a reshape, the blocks are the blocks; back again, it is where it was."""
    shape, axis, length = place
    size = int(np.prod(shape))
    divisors = [d for d in range(1, size + 1) if size % d == 0] or [0]
    first = data.draw(st.sampled_from(divisors))
    rest = size // first if first else 3
    second = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    after = data.draw(st.permutations([first, second, rest // second]))
    x = jnp.arange(size).reshape(shape)
    eqn = jax.make_jaxpr(lambda x: lax.reshape_p.bind(x, new_sizes=tuple(after), dimensions=None, sharding=None))(x)
    answer = judge(eqn.jaxpr.eqns[0], {0: axis}, [x], [x.reshape(after)], length) if length != 1 else No("ambiguous")
    if isinstance(answer, Mapped):
        assert answer.outs == (follow(axis, shape, after, length),)


def test_reshape_merges_and_splits() -> None:
    """[T, B, V] -> [T * B, V] -> [T, B, V], and the axis stays in one piece through both."""
    merged = follow(Axis(0), (5, 3, 4), (15, 4), 5)
    assert merged == Axis(0, inner=3)
    assert follow(merged, (15, 4), (5, 3, 4), 5) == Axis(0)
    assert follow(Axis(1), (3, 5, 4), (15, 4), 5) == Axis(0, outer=3)
    assert follow(Axis(1), (3, 5, 4), (60,), 5) == Axis(0, outer=3, inner=4)


@pytest.mark.parametrize("axis", [Axis(0), Axis(0, outer=2), Axis(0, inner=2), Axis(0, outer=2, inner=2)])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.float32, jnp.int8])
def test_iota_counts_from_the_start_of_a_block(axis: Axis, dtype: Any) -> None:
    """A block of `iota` needs its start and nothing else; along its other dimensions it needs nothing."""
    length = 8 // (axis.outer * axis.inner)
    eqn = _last(lambda: lax.broadcasted_iota(dtype, (8, 3), 0))
    whole = lax.broadcasted_iota(dtype, (8, 3), 0)
    answer = along_output(eqn, {0: axis}, length)
    assert isinstance(answer, Mapped)
    assert (answer.ins, answer.uses_start) == ((), True)
    judge_mapped(eqn, answer, [], [whole], length)
    other = along_output(eqn, {0: Axis(1)}, 3)
    assert isinstance(other, Mapped)
    assert not other.uses_start
    judge_mapped(eqn, other, [], [whole], 3)


def test_a_broadcast_makes_only_its_block() -> None:
    """A dimension that a broadcast creates comes from nowhere: the input is used whole."""
    eqn = _last(lambda b: lax.broadcast_in_dim(b, (5, 3), (1,)), jnp.ones(3))
    answer = along_output(eqn, {0: Axis(0)}, 5)
    assert isinstance(answer, Mapped)
    assert answer.ins == (None,)
    assert answer.block(0, 2, jnp.ones(3))[0].shape == (2, 3)


MONOIDS = [ADD, MUL, MAX, MIN, AND, OR, XOR, ARGMAX, ARGMIN]
SPECIAL = [0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("monoid", MONOIDS, ids=lambda m: m.name)
def test_monoid_laws(monoid: Monoid) -> None:
    """Order and grouping do not matter, and the identity changes nothing; inf and nan included."""
    logical = monoid.name in ("and", "or", "xor")
    values = jnp.arange(-3, 4) if logical else jnp.array(SPECIAL)
    a, b, c = (jnp.asarray(x).ravel() for x in jnp.meshgrid(values, values, values))
    parts = [(x,) for x in (a, b, c)]
    if monoid.name.startswith("arg"):
        parts = [(x, jnp.full(x.shape, i)) for x, i in zip((a, b, c), (5, 2, 9), strict=True)]
    p, q, r = parts
    identity = monoid.identity([jax.typeof(x) for x in p])
    laws = [
        (monoid.combine(p, q), monoid.combine(q, p)),
        (monoid.combine(p, monoid.combine(q, r)), monoid.combine(monoid.combine(p, q), r)),
        (monoid.combine(p, identity), p),
        (monoid.combine(identity, p), p),
    ]
    for left, right in laws:
        for x, y in zip(left, right, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int8, jnp.uint16, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn])
def test_extremes_are_identities_of_every_type(dtype: Any) -> None:
    """No value of the type loses against the identity of max or min."""
    ends = jnp.array([0, 1], dtype) if dtype == jnp.bool_ else _ends(dtype)
    for monoid in (MAX, MIN):
        np.testing.assert_array_equal(
            monoid.combine((ends,), monoid.identity([jax.typeof(ends)]))[0].astype(jnp.float32),
            ends.astype(jnp.float32),
        )


def _ends(dtype: Any) -> Any:
    info = jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype)
    return jnp.array([info.min, info.max, 0], dtype)


@pytest.mark.parametrize("fun", [lax.argmax, lax.argmin])
@pytest.mark.parametrize("axis", [Axis(0), Axis(0, outer=2), Axis(0, inner=2)])
def test_argmax_keeps_first_index_and_nan(fun: Any, axis: Axis, rng: np.random.Generator) -> None:
    """Of equal values the first index wins, nan beats all, and the first nan beats the others, over merged axes too."""
    x = jnp.array(rng.choice(SPECIAL, (8, 300)), jnp.float32)
    eqn = _last(lambda x: fun(x, 0, jnp.int32), x)
    answer = along(eqn, {0: axis}, 8 // (axis.outer * axis.inner))
    assert isinstance(answer, Reduced)
    judge_reduced(eqn, answer, [x], [fun(x, 0, jnp.int32)], 8 // (axis.outer * axis.inner))


def test_argmax_of_blocks_can_be_differentiated_around() -> None:
    """The index has no derivative, and the partial results must not be in the way of one."""
    eqn = _last(lambda x: lax.argmax(x, 0, jnp.int32), jnp.ones((4, 3)))
    answer = along(eqn, {0: Axis(0)}, 4)
    assert isinstance(answer, Reduced)
    jax.grad(lambda x: answer.finish(*answer.block(0, 2, x))[0].astype(jnp.float32).sum() + x.sum())(jnp.ones((2, 3)))


@pytest.mark.parametrize(
    "fun", [lambda x: lax.reduce_sum(x, (0,)), lambda x: lax.dot(jnp.ones(x.shape[0], x.dtype), x)]
)
def test_narrow_sums_round_once(fun: Any) -> None:
    """A sum in bfloat16 over 4096 blocks stays within one rounding of the exact one: 1 + 1/512 does not vanish."""
    x = jnp.full((4096, 2), 1 / 512, jnp.bfloat16)
    eqn = _last(fun, x)
    position = next(i for i, v in enumerate(eqn.invars) if v.aval.shape == x.shape)
    answer = along(eqn, {position: Axis(0)}, 4096)
    assert isinstance(answer, Reduced)
    inputs = [x[:1] if i == position else jnp.ones((1,), x.dtype) for i in range(len(eqn.invars))]
    part = tuple(answer.block(0, 1, *inputs))
    assert part[0].dtype == jnp.float32
    total = lax.fori_loop(0, 4096, lambda i, t: answer.monoid.combine(t, part), answer.monoid.identity(part))
    (out,) = answer.finish(*total)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out.astype(jnp.float32), [8.0, 8.0])


def test_the_front_door_asks_for_axes_that_fit() -> None:
    """An axis that cannot stand where the caller says is a bug of the caller's."""
    eqn = _last(lambda x: x + 1, jnp.ones((3, 4)))
    with pytest.raises(AssertionError, match="does not fit"):
        along(eqn, {0: Axis(1)}, 3)


def test_unit_dimensions_are_broadcast_not_mapped() -> None:
    """jax 0.10.2 broadcasts unit dimensions in binary operations: `[2, 1] * [1, 3]` varies along one input each."""
    eqn = _last(lambda x, y: lax.mul(x, y), jnp.ones((2, 1)), jnp.ones((1, 3)))
    answer = along(eqn, {0: Axis(0)}, 2)
    assert isinstance(answer, Mapped)
    assert answer.ins == (Axis(0), None)
    assert isinstance(along(eqn, {0: Axis(1)}, 1), No)


@pytest.mark.parametrize(
    ("fun", "each", "together"),
    [
        (lambda x, y: x * y, (0, 1), ()),
        (lambda x, y: x + y, (), (0, 1)),
        (lambda x, y: x - y, (), (0, 1)),
        (lambda x, y: x / y, (0,), (0,)),
        (lambda x, y: x @ y, (0, 1), ()),
        (lambda x, y: jnp.concatenate([x, y]), (), (0, 1)),
        (lambda x, y: lax.select(jnp.ones((3, 3), bool), x, y), (), (1, 2)),
        (lambda x, y: jnp.sin(x), (), ()),
        (lambda x, y: -x, (0,), (0,)),
        (lambda x, y: x.sum(0), (0,), (0,)),
        (lambda x, y: x.astype(jnp.int32), (), ()),
        (lambda x, y: x.astype(jnp.bfloat16), (0,), (0,)),
        (lambda x, y: jnp.maximum(x, y), (), ()),
    ],
)
def test_linearity(fun: Any, each: tuple[int, ...], together: tuple[int, ...]) -> None:
    """Linear in each input with the others fixed, or in several at once: the two differ for products and sums."""
    eqn = _last(fun, jnp.ones((3, 3)), jnp.ones((3, 3)))
    assert linear_in(eqn) == each
    assert linear_together(eqn) == together


@pytest.fixture
def primitive() -> Primitive:
    """A primitive of a user's, that nothing is known of."""
    new = Primitive("users_own")
    new.def_impl(lambda x, **params: jnp.sin(x))
    new.def_abstract_eval(lambda x, **params: ShapedArray(x.shape, x.dtype))
    return new


def test_declared_elementwise(primitive: Primitive) -> None:
    """One line makes a user's primitive pass every axis."""
    x = jnp.arange(6.0).reshape(3, 2)
    eqn = _last(primitive.bind, x)
    assert isinstance(along(eqn, {0: Axis(0)}, 3), No)
    declare(primitive, elementwise=True, linear_in=(0,))
    assert isinstance(judge(eqn, {0: Axis(0)}, [x], [jnp.sin(x)], 3), Mapped)
    assert linear_in(eqn) == (0,)


def test_declared_reduction() -> None:
    """A user's reduction with its monoid gives partial results; without one, only the other dimensions pass."""
    norm = Primitive("largest_magnitude")
    norm.def_impl(lambda x, *, axes: jnp.abs(x).max(axes))
    norm.def_abstract_eval(lambda x, *, axes: ShapedArray(tuple(np.delete(x.shape, axes)), x.dtype))
    x = jnp.array([[1.0, -5.0], [3.0, 2.0], [-4.0, 0.0]])
    eqn = _last(lambda x: norm.bind(x, axes=(0,)), x)
    declare(norm, reduces="axes")
    assert isinstance(judge(eqn, {0: Axis(1)}, [x], [jnp.array([4.0, 5.0])], 2), Mapped)
    assert isinstance(along(eqn, {0: Axis(0)}, 3), No)
    declare(norm, reduces="axes", monoid=MAX)
    assert isinstance(judge(eqn, {0: Axis(0)}, [x], [jnp.array([4.0, 5.0])], 3), Reduced)


def test_declared_by_function(primitive: Primitive) -> None:
    """The full answer can be given by a function; without a second one the way back is unknown."""
    declare(primitive, along=lambda eqn, ins, length: No("not today, not here"))
    eqn = _last(primitive.bind, jnp.ones(3))
    assert along(eqn, {0: Axis(0)}, 3) == No("not today, not here")
    assert isinstance(along_output(eqn, {0: Axis(0)}, 3), No)


@pytest.mark.parametrize("width", [8, 32, 64])
def test_words_of_one_key_are_drawn_by_their_number(width: int) -> None:
    """A block of random words is bit by bit the same, along each dimension; of keys of another kind it is not made."""
    key = jax.random.key(3)
    with jax.enable_x64(True):

        def draw(key: Any) -> Any:
            return jax.random.bits(key, (6, 4, 5), dtype=f"uint{width}")

        eqn, whole = _last(draw, key), draw(key)
        for dim, length in enumerate(whole.shape):
            answer = along_output(eqn, {0: Axis(dim)}, length)
            assert isinstance(answer, Mapped)
            (block,) = answer.block(np.int32(1), 2, key)
            np.testing.assert_array_equal(block, lax.slice_in_dim(whole, 1, 3, axis=dim), strict=True)
        assert isinstance(along_output(_last(draw, jax.random.key(3, impl="rbg")), {0: Axis(0)}, 6), No)
        with jax.threefry_partitionable(False):
            assert isinstance(along_output(_last(draw, key), {0: Axis(0)}, 6), No)


@pytest.mark.parametrize(
    "options", [{"elementwise": True, "reduces": "axes"}, {"monoid": MAX}, {"along_output": lambda *a: No("no")}]
)
def test_contradicting_declarations_are_errors(primitive: Primitive, options: dict[str, Any]) -> None:
    """A declaration says one thing."""
    with pytest.raises(ValueError, match="users_own"):
        declare(primitive, **options)


def test_answers_are_fast() -> None:
    """An equation is asked about in some dozens of Python calls: no tracing, no search."""

    def fun(x: Any, w: Any) -> Any:
        for _ in range(100):
            x = jnp.reshape(lax.dot(lax.transpose(x, (1, 0)).T, w) * 2.0 + 1.0, (5, 8))
        return x

    eqns = jax.make_jaxpr(fun)(jnp.ones((5, 8)), jnp.ones((8, 8))).jaxpr.eqns
    asked = [(eqn, {0: Axis(eqn.invars[0].aval.shape.index(5))}) for eqn in eqns]
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        answers = [along(eqn, known, 5) for eqn, known in asked]
    finally:
        sys.setprofile(None)
    assert all(isinstance(answer, Mapped) for answer in answers)
    assert len(calls) < 150 * len(asked), len(calls) / len(asked)
