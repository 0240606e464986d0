"""`prepare`: compiled ahead, results in the memory of earlier ones, what a call costs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import aerogel as ag
from aerogel.transform.prepared_cost import PreparedCost

X = jnp.arange(3.0)


class Line(ag.Module):
    slope: jax.Array
    offset: jax.Array
    how: Any = jnp.negative

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.how(self.slope * x + self.offset)


LINE = Line(jnp.ones(3), jnp.zeros(3))


def loss(line: Line, x: jax.Array) -> jax.Array:
    """Something with a gradient in `line`."""
    return jnp.sum(line(x) ** 2)


@pytest.fixture(scope="module")
def prepared() -> ag.Prepared:
    """The gradient of `loss`, prepared for shapes."""
    return ag.prepare(ag.value_and_grad(loss), LINE, jax.ShapeDtypeStruct((3,), "float32"))


def places(tree: Any) -> list[int]:
    """Where the arrays of a tree lie in memory."""
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]


def test_a_gradient_takes_the_memory_of_the_last_one(prepared: ag.Prepared) -> None:
    """The numbers are new, their place is the old one, and the old gradient is gone."""
    value, first = prepared(LINE, X)
    at = sorted(places(first))
    assert float(value) == 5
    twice = ag.at(LINE).slope.set(2 * LINE.slope)
    value, second = prepared(twice, X, out=first)
    wanted_value, wanted = jax.value_and_grad(loss)(twice, X)
    assert sorted(places(second)) == at
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    np.testing.assert_allclose(value, wanted_value)
    jax.tree.map(np.testing.assert_allclose, second, wanted)
    assert isinstance(second, Line)


def test_no_call_traces_or_compiles(prepared: ag.Prepared) -> None:
    """Both programs are there before the first call: one for fresh memory, one for that of the gradient."""
    seen: list[str] = []

    def note(name: str, *_: Any, **__: Any) -> None:
        seen.append(name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        jax.jit(lambda x: x + len(seen))(X)
        assert any("compile" in name for name in seen)
        seen.clear()
        _, grads = prepared(LINE, X)
        for _ in range(3):
            _, grads = prepared(LINE, X, out=grads)
        assert not seen
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_memory_that_is_gone_is_told_by_path(prepared: ag.Prepared) -> None:
    """A gradient that was given away cannot be given again, be an argument, or be both at once."""
    _, first = prepared(LINE, X)
    _, second = prepared(LINE, X, out=first)
    for args, out, gone in (
        ((LINE, X), first, r"out\.slope  f32\[3\], deleted\n.*out\.offset  f32\[3\], deleted"),
        ((first, X), None, r"line\.slope  f32\[3\], deleted"),
        ((second, X), second, r"line\.slope  f32\[3\], which is in `out` too"),
    ):
        with pytest.raises(ag.MemoryTakenError, match=gone):
            prepared(*args, out=out)


def test_other_arguments_are_told_by_path(prepared: ag.Prepared) -> None:
    """Shape, dtype, structure, a value that is no array, and an `out` that is no gradient."""
    _, grads = prepared(LINE, X)
    other = ag.at(grads).slope.set(jnp.ones(4))
    for args, out, change in (
        ((LINE, jnp.ones(4)), None, r"x  f32\[3\] -> f32\[4\]"),
        ((LINE, X.astype(jnp.int32)), None, r"x  f32\[3\] -> i32\[3\]"),
        ((LINE, [X]), None, r"x\s+f32\[3\] -> list"),
        ((LINE,), None, r"x  f32\[3\] -> nothing"),
        ((ag.at(LINE).how.set(jnp.abs), X), None, r"line\.how\s+<jnp.ufunc 'negative'> -> abs"),
        ((LINE, X), other, r"out\.slope  f32\[3\] -> f32\[4\]"),
    ):
        with pytest.raises(ag.ArgumentsError, match=change):
            prepared(*args, out=out)


@pytest.mark.parametrize("call", [LINE, LINE.__call__], ids=["module", "method"])
def test_a_callable_with_arrays_is_prepared(call: Any) -> None:
    """Its own arrays go along by themselves; the whole result gives its memory where there is no gradient."""
    prepared = ag.prepare(call, X)
    first = prepared(X)
    at = places(first)
    second = prepared(2 * X, out=first)
    assert places(second) == at
    np.testing.assert_array_equal(second, -2 * X)


@pytest.mark.parametrize(
    ("f", "place"),
    [
        (lambda a, b: (jnp.sum(a), {"b": 2 * b}), 1),
        (ag.grad(lambda a, b: (jnp.sum(a * b), a), has_aux=True), 0),
        (ag.grad(lambda a, b: jnp.sum(a * b), argnums=(0, 1)), 0),
        (ag.value_and_grad(lambda a, b: (jnp.sum(a * b), a), has_aux=True), 1),
        (jax.value_and_grad(lambda a, b: jnp.sum(a * b)), 1),
    ],
    ids=["pair", "grad has_aux", "tuple of gradients", "value_and_grad has_aux", "jax"],
)
def test_any_element_of_the_result_gives_its_memory(f: Any, place: int) -> None:
    """Not only what was compiled for: the result as a whole, and each of its elements."""
    prepared = ag.prepare(f, X, X + 1)
    for part in (lambda out: out[place], lambda out: out):
        out = part(prepared(X, X + 1))
        at = places(out)
        again = prepared(2 * X, X + 1, out=out)
        assert set(places(again)) >= set(at)
        jax.tree.map(np.testing.assert_allclose, again, f(2 * X, X + 1))


class Power(ag.Module):
    scale: jax.Array

    def __call__(self, x: jax.Array, n: int, *, offset: jax.Array) -> jax.Array:
        return self.scale * x**n + offset


@pytest.mark.parametrize(
    "f", [lambda x, n, *, offset: 2 * x**n + offset, Power(jnp.array(2.0))], ids=["plain", "module"]
)
@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": "n"}], ids=str)
def test_options_of_jit_hold(f: Any, options: dict[str, Any]) -> None:
    """What is static stays so, by position and by name, and keyword arguments go by name."""
    prepared = ag.prepare(ag.jit(f, **options), X, 3, offset=X)
    first = prepared(X, offset=X)
    np.testing.assert_array_equal(prepared(X, offset=2 * X, out=first), 2 * X**3 + 2 * X)


def test_a_state_that_is_donated_still_is() -> None:
    """`donate="state"` works as in `ag.jit` where no `out` is given; else `out` gives its memory in its place."""
    step = ag.jit(lambda line, x: ag.at(line).offset.apply(lambda b: b + x), donate="state")
    prepared = ag.prepare(step, LINE, X)
    first = ag.map_leaves(lambda x: x + 0, LINE)
    second = prepared(first, X)
    assert first.offset.is_deleted()
    third = prepared(second, X, out=prepared(ag.map_leaves(lambda x: x + 0, LINE), X))
    assert not second.offset.is_deleted()
    np.testing.assert_array_equal(third.offset, 2 * X)


def test_arrays_stay_where_they_are_spread() -> None:
    """A gradient over several devices takes the memory of one that lies over them in the same way."""
    spread = NamedSharding(jax.make_mesh((4,), ("x",), devices=jax.devices()[:4]), PartitionSpec("x"))
    w = jax.device_put(jnp.arange(8.0), spread)
    prepared = ag.prepare(ag.value_and_grad(lambda w: jnp.sum(w**3)), w)
    _, first = prepared(w)
    _, second = prepared(2 * w, out=first)
    assert first.is_deleted()
    assert second.sharding.is_equivalent_to(spread, 1)
    np.testing.assert_array_equal(second, 12 * np.arange(8.0) ** 2)


def test_types_are_those_of_the_examples() -> None:
    """Float64, bfloat16, integers, keys, zero sizes, scalars and None go through as they are."""
    with jax.enable_x64(True):
        tree = {
            "wide": jnp.ones(2),
            "narrow": jnp.ones(2, jnp.bfloat16),
            "whole": jnp.arange(2),
            "key": jax.random.key(0),
            "empty": jnp.ones((0, 2)),
            "none": None,
            "number": 2.0,
        }
        prepared = ag.prepare(ag.value_and_grad(lambda t: jnp.sum(t["wide"] ** 2) * t["number"]), tree)
        _, grads = prepared(tree)
        _, grads = prepared(tree, out=grads)
    assert grads["wide"].dtype == jnp.float64
    assert grads["narrow"].dtype == jnp.bfloat16
    assert grads["whole"] is grads["key"] is grads["none"] is None
    np.testing.assert_array_equal(grads["wide"], [4, 4])
    assert float(grads["number"]) == 2


def test_what_is_no_gradient_costs_what_its_program_costs() -> None:
    """The figures are those of the optimised program, and there is no value to compare with."""
    cost = ag.prepare(lambda x: x @ x, jnp.ones((50, 50))).cost
    assert cost.flops == 2 * 50**3
    assert cost.bytes_moved == 2 * 50 * 50 * 4
    assert cost.value is cost.over_value is cost.residual_bytes is None


def test_a_gradient_costs_more_than_its_value() -> None:
    """Residuals are what XLA plans for the gradient and not for the value: here one array per step."""
    n, steps = 1000, 64

    def decay(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=steps)[0])

    cost = ag.prepare(ag.value_and_grad(decay), jnp.ones(n)).cost
    assert cost.value is not None
    assert cost.over_value is not None
    assert cost.residual_bytes is not None
    assert cost.residual_bytes == cost.temp_bytes - cost.value.temp_bytes
    assert cost.residual_bytes > 0
    assert cost.over_value["flops"] == cost.flops / cost.value.flops > 1


def test_a_cost_prints_as_a_table() -> None:
    """A line a figure, with the value's beside it and their ratio."""
    value = PreparedCost(seconds=1e-6, flops=2000, bytes_moved=400, temp_bytes=0)
    cost = PreparedCost(seconds=3.14159e-6, flops=5000, bytes_moved=3_000_000, temp_bytes=16, value=value)
    assert str(cost).splitlines() == [
        "                 a call  the value alone    ratio",
        "seconds         3.14 us             1 us     3.14",
        "flops               5 k              2 k     2.50",
        "bytes moved         3 M              400  7500.00",
        "temp bytes           16                0      inf",
        "residual bytes       16",
    ]
    assert str(value).splitlines()[:2] == ["             a call", "seconds        1 us"]
