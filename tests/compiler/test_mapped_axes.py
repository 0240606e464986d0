"""Collectives over the axis of a `vmap` are reductions; those over devices, and others, stay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import evaluate
from aerogel.compiler.normalize import normalize
from compiler.programs_of import bits, traced

X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), "float32")


def mapped(f: Any, **options: Any) -> Any:
    """`f` for each row, which knows the axis of rows."""
    return jax.vmap(f, axis_name="rows", **options)


ALL = {
    "sum": mapped(lambda x: x / lax.psum(x, "rows")),
    "mean": mapped(lambda x: x - lax.pmean(x, "rows")),
    "largest": mapped(lambda x: x - lax.pmax(x, "rows")),
    "smallest": mapped(lambda x: lax.pmin(x, "rows") * x),
    "columns": mapped(lambda x: x - lax.pmean(x, "rows"), in_axes=1, out_axes=1),
    "two": mapped(lambda x: lax.psum((x, x[:2] * 2), "rows")),
    "nested": mapped(lambda x: jax.vmap(lambda v: lax.psum(v, ("rows", "entries")), axis_name="entries")(x)),
    "in a loop": lambda x: lax.scan(lambda c, _: (ALL["mean"](jnp.sin(c)), None), x, None, length=3)[0],
    "nothing": mapped(lambda x: lax.psum(x, "rows"), axis_size=0),
}


WHOLE = ("largest", "smallest", "two", "nested", "nothing")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, dtype) for name in ALL for dtype in ("float32", "bfloat16")), *((name, "int32") for name in WHOLE)],
)
def test_over_the_axis_of_a_vmap(name: str, dtype: str) -> None:
    """The same bits, by reductions."""
    x = (4 * X).astype(dtype)[: 0 if name == "nothing" else None]
    program = traced(ALL[name], x)
    assert "pmax" in str(program) or "pmin" in str(program) or "psum" in str(program)
    normal = normalize(program)[0]
    assert not any(word in str(normal) for word in ("pmax", "pmin", "psum"))
    assert bits(jax.jit(lambda x: evaluate(normal, [x]))(x)) == bits(jax.jit(lambda x: evaluate(program, [x]))(x))


@pytest.mark.parametrize("name", ["sum", "mean", "columns", "two", "nested"])
def test_gradients(name: str) -> None:
    """Inside of what is optimised, and around it."""
    loss = lambda f: lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x)))  # noqa: E731
    want = jax.grad(loss(ALL[name]))(X)
    np.testing.assert_allclose(ag.optimize(jax.grad(loss(ALL[name])))(X), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.grad(loss(ag.optimize(ALL[name])))(X), want, rtol=1e-5, atol=1e-6)


def test_other_collectives_stay() -> None:
    """Of groups of examples, of booleans, and what is no sum."""
    groups = mapped(lambda x: lax.psum(x, "rows", axis_index_groups=[[0, 1], [2, 3]]))
    with pytest.raises(NotImplementedError):
        traced(groups, X[:4])
    booleans = traced(mapped(lambda x: lax.pmax(x > 0, "rows")), X)
    assert "pmax" in str(normalize(booleans)[0])


def test_devices_take_part_in_others() -> None:
    """The axis is one of a mesh."""
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("rows")
    f = jax.shard_map(lambda x: lax.psum(x, "rows"), mesh=mesh, in_specs=rows, out_specs=jax.sharding.PartitionSpec())
    assert "psum" in str(normalize(traced(f, X))[0])
