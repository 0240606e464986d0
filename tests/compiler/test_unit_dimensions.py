"""Bodies without dimensions of the length one: the same values, and where they may stay."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import ClosedJaxpr
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.fusion.unit_dimensions import RULES, without_unit_dimensions
from compiler.programs_of import run, scans, traced

DRAWN = 10


def drawn(seed: int) -> Callable[[Any, Any], list[Any]]:
    """A body of 15 random equations over values of sizes 1, 3 and 4, with dimensions added, moved and dropped."""

    def body(x: Any, y: Any) -> list[Any]:
        rng = np.random.default_rng(seed)
        values = [x, y, x[None], lax.transpose(lax.expand_dims(y, [1]), [2, 1, 0])]

        def step(v: Any) -> Any:
            ones = [d for d, n in enumerate(v.shape) if n == 1]
            same = [w for w in values if w.shape == v.shape]
            match int(rng.integers(8)):
                case 0 if v.ndim < 4:
                    return lax.expand_dims(v, [int(rng.integers(v.ndim + 1))])
                case 1 if ones:
                    return lax.squeeze(v, [int(rng.choice(ones))])
                case 2 if v.ndim:
                    axes = rng.permutation(v.ndim)[: rng.integers(1, v.ndim + 1)].tolist()
                    return [jnp.sum, jnp.max, jnp.any][rng.integers(3)](v, axis=tuple(axes)).astype(jnp.float32)
                case 3:
                    return lax.transpose(v, rng.permutation(v.ndim).tolist())
                case 4:
                    shape = [n for n in v.shape if n > 1]
                    shape.insert(int(rng.integers(len(shape) + 1)), 1)
                    return lax.reshape(v, [v.size] if rng.integers(2) else shape)
                case 5 if v.ndim < 4:
                    return jnp.broadcast_to(v, (3, *v.shape))[0:2] if rng.integers(2) else v * jnp.ones((1, *v.shape))
                case 6:
                    return lax.select(v > 0, v, jnp.full(v.shape, 0.5))
                case _:
                    return v + same[rng.integers(len(same))]

        for _ in range(15):
            values.append(step(values[rng.integers(len(values))]))
        return [*values[-6:], values[2] + 1, values[3] + 1]

    return body


@pytest.mark.parametrize("seed", range(DRAWN))
def test_values_are_the_same(seed: int) -> None:
    """Whatever is added, moved, reduced and dropped, results keep their types and their bits."""
    args = jnp.arange(3.0) - 1, (jnp.arange(12.0) % 5 - 2).reshape(4, 3)  # sums of which are exact in any order
    program = traced(drawn(seed), *args)
    short = ClosedJaxpr(without_unit_dimensions(program.jaxpr), program.consts)
    assert [v.aval for v in short.jaxpr.outvars] == [v.aval for v in program.jaxpr.outvars]
    jax.tree.map(np.testing.assert_array_equal, run(short, *args), run(program, *args))


def states(x: Any) -> Any:
    """The states of a loop, `[100, n]`."""
    return lax.scan(lambda c, _: (jnp.cos(c), jnp.cos(c)), x, None, length=100)[1]


@pytest.mark.parametrize(
    "consume",
    [
        lambda ys, x: jnp.isnan(ys).any(),
        lambda ys, x: (ys * x).mean(-1),
        lambda ys, x: jnp.sqrt((jnp.swapaxes(ys, 0, 1) ** 2).sum(0)),
        lambda ys, x: jnp.where(ys > x, ys, 0.0).max(0),
    ],
    ids=["any", "a product with an array from outside", "a norm of each step", "a choice"],
)
def test_moved_steps_have_none(consume: Callable[..., Any]) -> None:
    """What moves into a loop works there on values without a time axis; an array from outside loses its own at once."""

    def f(x: Any) -> Any:
        return consume(states(x), x)

    # A product of matrices that one pass makes of the second keeps its axis of one row.
    passes = tuple(one for one in DEFAULT_PASSES if one.name != "contraction")
    (loop,) = scans(jax.make_jaxpr(ag.optimize(f, passes=passes))(jnp.ones(5000)))
    worked = [eqn for eqn in loop.params["jaxpr"].jaxpr.eqns if eqn.primitive.name in RULES]
    views = ("broadcast_in_dim", "reshape", "squeeze")
    assert len(worked) > 2
    assert not [eqn for eqn in worked if eqn.primitive.name not in views and 1 in eqn.outvars[0].aval.shape]
