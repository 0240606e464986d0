"""Batches of small products are not turned so that XLA's CPU backend reads their operands against the rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag


def _net(p, x):
    for w, b in p[:-1]:
        x = jnp.maximum(x @ w + b, 0)
    return x @ p[-1][0] + p[-1][1]


def _loss(p, x, y):
    return jnp.mean((_net(p, x) - y) ** 2)


def _task(p, xs, ys, xq, yq):
    for _ in range(3):
        p = jax.tree.map(lambda a, g: a - 0.01 * g, p, jax.grad(_loss)(p, xs, ys))
    return _loss(p, xq, yq)


def test_gradient_through_gradient_steps_of_many_small_tasks_is_not_turned():
    """Its products are small: what turning saves in one is paid in the next."""
    rng = np.random.default_rng(0)
    sizes = [(1, 40), (40, 40), (40, 1)]
    p = [(jnp.asarray(rng.normal(size=s), jnp.float32), jnp.zeros(s[1])) for s in sizes]
    tasks = [jnp.asarray(rng.normal(size=(25, 10, 1)), jnp.float32) for _ in range(4)]

    def f(p, tasks):
        return jax.grad(lambda p: jnp.mean(jax.vmap(partial(_task, p))(*tasks)))(p)

    decisions = [d for d in ag.explain(f)(p, tasks).decisions if d.rule == "orientation"]
    assert decisions
    assert not [d for d in decisions if d.fired and "transpose" in d.reason]
