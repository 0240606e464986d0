"""Output heads under a cross-entropy, in the ways in which people write them: the logits of all steps never exist."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.fusion import site_seconds
from compiler.loop_patterns import made, normal

T, B, H, V = 64, 4, 16, 4096  # 4 MiB of logits

Head = Callable[[dict[str, Any], Any, Any], Any]


def states(p: dict[str, Any], xs: Any) -> Any:
    """A recurrent network's states, `[T, B, H]`."""

    def body(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h @ p["recurrent"] + x)
        return h, h

    return lax.scan(body, jnp.zeros(xs.shape[1:]), xs)[1]


def of_logits(loss: Callable[[Any, Any], Any]) -> Head:
    """`loss(logits, labels)` of the plainest head."""
    return lambda p, xs, labels: loss(states(p, xs) @ p["head"], labels)


def picked(x: Any, labels: Any) -> Any:
    """The entry of each row that its label names."""
    return jnp.take_along_axis(x, labels[..., None], -1)[..., 0]


def each(logits: Any, labels: Any) -> Any:
    """The cross-entropy of each token."""
    return -picked(jax.nn.log_softmax(logits), labels)


def masked(logits: Any, labels: Any) -> Any:
    """The mean over the tokens that are no padding, by a product."""
    mask = (labels != 0).astype(logits.dtype)
    return (each(logits, labels) * mask).sum() / mask.sum()


def masked_by_where(logits: Any, labels: Any) -> Any:
    """The same, by `where`."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.where(labels != 0, losses, 0).sum() / jnp.maximum((labels != 0).sum(), 1)


def smoothed(logits: Any, labels: Any) -> Any:
    """Soft labels."""
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, V), 0.1)).mean()


def smoothed_by_mean(logits: Any, labels: Any) -> Any:
    """The same, as the mean of all entries beside the label's."""
    logp = jax.nn.log_softmax(logits)
    return -(0.9 * picked(logp, labels) + 0.1 * logp.mean(-1)).mean()


def counted(logits: Any, labels: Any) -> Any:
    """The label's entry by an index for each row."""
    return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()


def with_z_loss(logits: Any, labels: Any) -> Any:
    """With a penalty on the normaliser."""
    z = jax.nn.logsumexp(logits, -1)
    return (z - picked(logits, labels)).mean() + 1e-4 * (z**2).mean()


def and_accuracy(logits: Any, labels: Any) -> Any:
    """With a metric of the same logits."""
    return each(logits, labels).mean() + 0.0 * (logits.argmax(-1) == labels).mean()


def one_at_a_time(logits: Any, labels: Any) -> Any:
    """A loss of one row, mapped twice."""
    return jax.vmap(jax.vmap(lambda row, label: -jax.nn.log_softmax(row)[label]))(logits, labels).mean()


def vmapped(p: dict[str, Any], xs: Any, labels: Any) -> Any:
    """Head and loss of one step, mapped."""
    return jax.vmap(lambda h, label: each(h @ p["head"], label).mean())(states(p, xs), labels).mean()


def of_vectors(p: dict[str, Any], xs: Any, labels: Any) -> Any:
    """Head and loss of one state, mapped twice."""
    return jax.vmap(jax.vmap(lambda h, label: each(p["head"].T @ h, label)))(states(p, xs), labels).mean()


def of_sequences(p: dict[str, Any], xs: Any, labels: Any) -> Any:
    """All of one sequence, mapped."""
    return jax.vmap(lambda x, y: each(states(p, x[:, None])[:, 0] @ p["head"], y).mean(), 1)(xs, labels).mean()


def in_the_scan(p: dict[str, Any], xs: Any, labels: Any) -> Any:
    """The head is in the step, the loss after the loop."""

    def body(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h @ p["recurrent"] + x)
        return h, h @ p["head"]

    return each(lax.scan(body, jnp.zeros((B, H)), xs)[1], labels).mean()


def both_ways(p: dict[str, Any], xs: Any, labels: Any) -> Any:
    """States of two loops side by side."""
    there, back = states(p, xs), states(p, xs[::-1])[::-1]
    return each(jnp.concatenate([there, back], -1) @ jnp.concatenate([p["head"]] * 2), labels).mean()


HEADS: dict[str, Head] = {
    "picked": of_logits(lambda x, y: each(x, y).mean()),
    "one-hot": of_logits(lambda x, y: -(jax.nn.log_softmax(x) * jax.nn.one_hot(y, V)).sum(-1).mean()),
    "optax": of_logits(lambda x, y: optax.softmax_cross_entropy_with_integer_labels(x, y).mean()),
    "label smoothing": of_logits(smoothed),
    "masked mean": of_logits(masked),
    "masked by where": of_logits(masked_by_where),
    "z-loss": of_logits(with_z_loss),
    "accuracy": of_logits(and_accuracy),
    "log of softmax": of_logits(lambda x, y: -jnp.log(picked(jax.nn.softmax(x), y)).mean()),
    "soft cap": of_logits(lambda x, y: each(30 * jnp.tanh(x / 30), y).mean()),
    "mean of means": of_logits(lambda x, y: each(x, y).mean(0).mean()),
    "sum, then mean": of_logits(lambda x, y: each(x, y).sum(0).mean()),
    "one loss at a time": of_logits(
        lambda x, y: jax.vmap(jax.vmap(lambda a, b: -jax.nn.log_softmax(a)[b]))(x, y).mean()
    ),
    "bias": lambda p, xs, y: each(states(p, xs) @ p["head"] + p["bias"], y).mean(),
    "tied": lambda p, xs, y: optax.softmax_cross_entropy_with_integer_labels(states(p, xs) @ p["words"].T, y).mean(),
    "einsum": lambda p, xs, y: each(jnp.einsum("tbh,vh->tbv", states(p, xs), p["words"]) + p["bias"], y).mean(),
    "batch-major": lambda p, xs, y: each(jnp.swapaxes(states(p, xs), 0, 1) @ p["head"], y.T).mean(),
    "flattened": lambda p, xs, y: each(states(p, xs).reshape(-1, H) @ p["head"], y.reshape(-1)).mean(),
    "vmap over steps": vmapped,
    "vmap of vmap": of_vectors,
    "vmap over sequences": of_sequences,
    "in the scan": in_the_scan,
    "lax.map": lambda p, xs, y: each(lax.map(lambda h: h @ p["head"], states(p, xs)), y).mean(),
    "two directions": both_ways,
    "counted rows": of_logits(
        lambda x, y: -jax.nn.log_softmax(x)[jnp.arange(T)[:, None], jnp.arange(B), y].mean(),
    ),
    "counted rows, flattened": lambda p, xs, y: counted(states(p, xs).reshape(-1, H) @ p["head"], y.reshape(-1)),
    "counted steps of sequences": lambda p, xs, y: jax.vmap(counted, 1)(states(p, xs) @ p["head"], y).mean(),
    "smoothed by the mean": of_logits(smoothed_by_mean),
}
VALUES: dict[str, Head] = {
    "bfloat16 logits": lambda p, xs, y: each(
        (states(p, xs).astype(jnp.bfloat16) @ p["head"].astype(jnp.bfloat16)).astype(jnp.float32), y
    ).mean(),
    "a step ahead": lambda p, xs, y: each((states(p, xs) @ p["head"])[:-1], y[1:]).mean(),
    "in a map": lambda p, xs, y: lax.map(lambda a: each(a[0] @ p["head"], a[1]).mean(), (states(p, xs), y)).mean(),
}


def arguments() -> tuple[dict[str, Any], Any, Any]:
    """Parameters, inputs and labels."""
    p = {"recurrent": normal(0, H, H) / H**0.5, "head": normal(1, H, V), "bias": normal(2, V), "words": normal(3, V, H)}
    return p, normal(4, T, B, H), np.random.default_rng(5).integers(0, V, (T, B)).astype(np.int32)


@pytest.fixture(autouse=True)
def threads_that_wake_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they cost a step has a test of its own (`test_small_heads_are_multiplied_at_once`)."""
    monkeypatch.setattr(site_seconds, "WAKING_SECONDS", 0.0)


@pytest.mark.parametrize("name", [*HEADS, *VALUES])
def test_values_hold_no_logits(name: str) -> None:
    """Half of all logits is more than the value needs of any array."""
    f = (HEADS | VALUES)[name]
    assert made(jax.make_jaxpr(f)(*arguments()).jaxpr, T * B * V // 2) or name == "in a map"
    assert made(jax.make_jaxpr(ag.optimize(f))(*arguments()).jaxpr, T * B * V // 2) == []


@pytest.mark.parametrize("name", HEADS)
def test_gradients_hold_no_logits(name: str) -> None:
    """Nor is it less than the gradient needs; value and gradient agree with plain JAX."""
    f, args = jax.value_and_grad(HEADS[name]), arguments()
    assert made(jax.make_jaxpr(f)(*args).jaxpr, T * B * V // 2)
    assert made(jax.make_jaxpr(ag.optimize(f))(*args).jaxpr, T * B * V // 2) == []
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


def block_lengths(f: Callable[..., Any], steps: int, width: int, words: int) -> list[int]:
    """Lengths of the loops that a head's program holds besides those of all steps."""
    p = {"recurrent": jnp.zeros((width, width)), "head": jnp.zeros((width, words))}
    xs, labels = jnp.zeros((steps, B, width)), jnp.zeros((steps, B), np.int32)
    eqns = jax.make_jaxpr(ag.optimize(f))(p, xs, labels).jaxpr.eqns
    return [n for eqn in eqns if eqn.primitive.name == "scan" and (n := eqn.params["length"]) != steps]


def test_blocks_are_shared_among_cores_or_too_small_for_it() -> None:
    """A gradient takes a quarter of the logits at a time; a value of few logits, blocks that one core works on alone.

    Sixteen blocks of 65,000 logits were the slowest of all lengths: too small to be shared, and shared all the same.
    """
    f = HEADS["picked"]
    assert block_lengths(jax.grad(f), T, H, V) == [4]
    assert block_lengths(f, T, H, V) == [32]
    # Where the product is most of the work, sharing it pays; a block may be as large as the states, here 512 kB.
    assert block_lengths(f, T, 512, V) == [8]
    assert block_lengths(f, T, 256, V) == [16]
