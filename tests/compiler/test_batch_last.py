"""Arrays between convolutions by rows have their images last."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.batch_last import NAME

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def network(layout: Any, pool: Any = lax.max, activation: Any = jax.nn.relu) -> Callable[..., Any]:
    """The loss of two convolutions, each with a bias, and pooled."""
    window = tuple(2 if axis in "HW" else 1 for axis in layout[0])
    bias_shape = tuple(-1 if axis == "C" else 1 for axis in layout[0])
    start = -jnp.inf if pool is lax.max else 0.0

    def loss(params: Any, x: Any) -> Any:
        for kernel, bias in params:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)
            x = lax.reduce_window(activation(x + bias.reshape(bias_shape)), start, pool, window, window, "VALID")
        return jnp.sum(jnp.sin(x.reshape(len(x), -1)))

    return loss


PARAMS = [(normal(0, 6, 3, 5, 5) / 8, normal(1, 6)), (normal(2, 16, 6, 5, 5) / 12, normal(3, 16))]
TURNED = [(kernel.transpose(2, 3, 1, 0), bias) for kernel, bias in PARAMS]
X = normal(9, 64, 3, 24, 24)


def fired(f: Callable[..., Any], *args: Any) -> int:
    """How many groups of arrays are turned."""
    return sum(d.rule == NAME for d in ag.explain(f)(*args).fired)


def transposed(f: Callable[..., Any], *args: Any) -> int:
    """Entries that transposes of a compiled program's source write."""
    eqns = jax.make_jaxpr(f)(*args).eqns
    return sum(eqn.outvars[0].aval.size for eqn in eqns if eqn.primitive.name == "transpose")


FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "channels first": (jax.value_and_grad(network(FIRST)), (PARAMS, X)),
    "channels last": (jax.value_and_grad(network(LAST)), (TURNED, X.transpose(0, 2, 3, 1))),
    "by the images too": (jax.grad(network(FIRST), (0, 1)), (PARAMS, X)),
    "tanh": (jax.grad(network(FIRST, activation=jnp.tanh)), (PARAMS, X)),
    "sums": (jax.grad(network(FIRST, lax.add)), (PARAMS, X)),
    "in a loop": (
        lambda ps, xs: lax.scan(lambda c, x: (c + jax.grad(network(FIRST))(ps, x)[0][1], 0), ps[0][1], xs)[0],
        (PARAMS, X[None]),
    ),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires_and_agrees(name: str) -> None:
    """The same gradient, and fewer entries turned than without the pass."""
    f, args = FIRES[name]
    assert fired(f, *args) >= 1
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(abs(want).max()))
    if name != "in a loop":
        others = tuple(p for p in ag.compiler.DEFAULT_PASSES if p.name != NAME)
        without = ag.optimize(f, passes=others, rules=ag.rules.default)
        assert transposed(ag.optimize(f), *args) < 0.8 * transposed(without, *args)


def many(params: Any, x: Any) -> Any:
    """Convolutions of many channels, which XLA's library takes."""
    x = jnp.concatenate([x] * 16, 1)
    return network(FIRST)([(jnp.concatenate([k] * 16, 1), b) for k, b in params[:1]], x)


def unpooled(params: Any, x: Any) -> Any:
    """Nothing is pooled: XLA carries an order through what works entry by entry."""
    for kernel, bias in params:
        x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "VALID") + bias[:, None, None])
    return jnp.sum(jnp.sin(x))


def turned(x: Any) -> Any:
    """What is batch last already."""
    return x.transpose(1, 2, 3, 0)


LEAVES_ALONE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "few images": (jax.grad(network(FIRST)), (PARAMS, X[:4])),
    "many channels": (jax.grad(many), (PARAMS, X)),
    "not pooled": (jax.grad(unpooled), (PARAMS, X)),
    "no convolution": (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), (X,)),
    "short floats": (jax.grad(network(FIRST)), jax.tree.map(lambda v: v.astype("bfloat16"), (PARAMS, X))),
    "batch last": (
        jax.grad(network(("CHWN", "OIHW", "CHWN"))),
        (PARAMS, turned(X)),
    ),
}


@pytest.mark.parametrize("name", LEAVES_ALONE)
def test_leaves_alone(name: str) -> None:
    """Nothing would be copied less."""
    f, args = LEAVES_ALONE[name]
    assert fired(f, *args) == 0


def test_strict() -> None:
    """Sums in another order are not made."""
    assert not any(d.rule == NAME for d in ag.explain(jax.grad(network(FIRST)), numerics="strict")(PARAMS, X).fired)
