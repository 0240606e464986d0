"""Associative scans are loops on a CPU, with their gradients; what is none, or has another gradient, stays."""

import re
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

NAME = "prefix-loops"
Form = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(seed: int, *shape: int) -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def decays(seed: int, *shape: int) -> Any:
    """Random numbers between 0.5 and 1."""
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 1.0, shape), "float32")


def joined(p: Any, q: Any) -> Any:
    """Two steps of a linear recurrence as one."""
    return p[0] * q[0], q[0] * p[1] + q[1]


def recurrence(a: Any, x: Any, **options: Any) -> Any:
    """h = a * h + x, for all steps."""
    return lax.associative_scan(joined, (a, x), **options)[1]


def state_space(A: Any, x: Any, B: Any, C: Any, dt: Any) -> Any:
    """A selective state space of a batch, as Mamba has."""

    def one(x: Any, B: Any, C: Any, dt: Any) -> Any:
        decay = jnp.exp(-dt[:, :, None] * A)
        h = recurrence(decay, (dt * x)[:, :, None] * B[:, None, :])
        return jnp.einsum("tdn,tn->td", h, C)

    return jax.vmap(one)(x, B, C, dt)


def minimal_unit(x: Any, gate: Any, candidate: Any) -> Any:
    """A gated unit whose gates do not read the state."""
    z = jax.nn.sigmoid(x @ gate)
    return jax.vmap(recurrence)(1 - z, z * (x @ candidate))


def advantages(rewards: Any, values: Any, goes_on: Any) -> Any:
    """Generalised advantage estimates, from the last step to the first."""
    errors = rewards + 0.99 * goes_on * values[1:] - values[:-1]
    return recurrence(0.95 * 0.99 * goes_on, errors, reverse=True)


def affine(A: Any, b: Any) -> Any:
    """x = A x + b, for all steps."""

    def after(p: Any, q: Any) -> Any:
        return q[0] @ p[0], jnp.einsum("nij,nj->ni", q[0], p[1]) + q[1]

    return lax.associative_scan(after, (A, b))[1]


def segments(x: Any, first: Any) -> Any:
    """Sums that begin anew where `first` says so."""

    def after(p: Any, q: Any) -> Any:
        return jnp.where(q[1], q[0], p[0] + q[0]), p[1] | q[1]

    return lax.associative_scan(after, (x, first))[0]


PAIR = (decays(0, 50, 6), normal(1, 50, 6))
MATRICES = 0.4 * normal(0, 40, 4, 4)
FLAGS = jnp.asarray(np.arange(50) % 7 == 3)
GRADIENTS: dict[str, Form] = {
    "recurrence": (recurrence, PAIR),
    "odd": (recurrence, (decays(0, 77), normal(1, 77))),
    "along the last axis": (lambda a, x: recurrence(a, x, axis=-1), (decays(0, 3, 40), normal(1, 3, 40))),
    "backwards": (lambda a, x: recurrence(a, x, reverse=True), PAIR),
    "a batch": (jax.vmap(recurrence), (decays(0, 4, 33, 5), normal(1, 4, 33, 5))),
    "decays of a batch": (jax.vmap(recurrence, (None, 0)), (decays(0, 33, 5), normal(1, 4, 33, 5))),
    "one decay": (lambda a, x: recurrence(jnp.broadcast_to(a, x.shape), x), (decays(0, 5), normal(1, 33, 5))),
    "one decay of a batch": (
        lambda a, x: jax.vmap(lambda row: recurrence(jnp.broadcast_to(a, row.shape), row))(x),
        (decays(0, 5), normal(1, 4, 33, 5)),
    ),
    "both results": (lambda a, x: sum(lax.associative_scan(joined, (a, x))), PAIR),
    "a call": (jax.jit(recurrence), PAIR),
    "checkpointed": (jax.checkpoint(recurrence), PAIR),
    "leaves read elsewhere": (lambda a, x: recurrence(a, x) * jnp.sin(x) + a, PAIR),
    "one after the other": (
        lambda a, b, x: recurrence(b, jnp.tanh(recurrence(a, x))),
        (PAIR[0], decays(2, 50, 6), PAIR[1]),
    ),
    "a shared leaf": (lambda a, x, y: recurrence(a, x) * recurrence(a, y), (*PAIR, normal(2, 50, 6))),
    "both directions": (lambda a, x: recurrence(a, x) + recurrence(a, x, reverse=True), PAIR),
    "matrices": (lambda x: lax.associative_scan(lambda p, q: q @ p, x), (MATRICES,)),
    "matrices, by einsum": (
        lambda x: lax.associative_scan(lambda p, q: jnp.einsum("nij,njk->nik", p, q), x),
        (MATRICES,),
    ),
    "matrices, mapped": (lambda x: lax.associative_scan(jax.vmap(jnp.matmul), x), (MATRICES,)),
    "affine": (affine, (MATRICES, normal(1, 40, 4))),
    "products": (lambda x: lax.associative_scan(jnp.multiply, x), (decays(0, 40, 3) + 0.2,)),
    "sums": (lambda x: lax.associative_scan(jnp.add, x), (normal(0, 100, 3),)),
    "segments": (segments, (normal(0, 50), FLAGS)),
    "state space": (
        state_space,
        (decays(0, 6, 4), normal(1, 2, 24, 6), normal(2, 2, 24, 4), normal(3, 2, 24, 4), decays(4, 2, 24, 6)),
    ),
    "minimal unit": (minimal_unit, (normal(0, 3, 40, 6), normal(1, 6, 6), normal(2, 6, 6))),
    "advantages": (advantages, (normal(0, 60), normal(1, 61), decays(2, 60))),
}
VALUES: dict[str, Form] = {
    "maxima": (lambda x: lax.associative_scan(jnp.maximum, x), (normal(0, 50, 3),)),
    "logarithms of sums": (lambda x: lax.associative_scan(jnp.logaddexp, x), (normal(0, 50, 3),)),
    "integers": (lambda x: lax.associative_scan(jnp.add, x), (jnp.arange(50),)),
    "bits of all": (lambda x: lax.associative_scan(jnp.bitwise_and, x), (~(1 << jnp.arange(30)),)),
    "bits of any": (lambda x: lax.associative_scan(jnp.bitwise_or, x), (1 << jnp.arange(30),)),
    "bits of an odd number": (lambda x: lax.associative_scan(jnp.bitwise_xor, x), (jnp.arange(7, 50),)),
    "all truths": (lambda x: lax.associative_scan(jnp.logical_and, x), (~FLAGS,)),
    "truths": (lambda x: lax.associative_scan(jnp.logical_or, x), (FLAGS,)),
    "complex": (lambda a, x: recurrence(a * jnp.exp(1j * x), x.astype("complex64")), PAIR),
    "bfloat16": (recurrence, tuple(v.astype("bfloat16") for v in PAIR)),
    "in a loop": (lambda a, x: lax.fori_loop(0, 3, lambda _, y: jnp.tanh(recurrence(a, y)), x), PAIR),
    "a tangent": (lambda a, x: jax.jvp(recurrence, (a, x), (jnp.cos(a), jnp.cos(x)))[1], PAIR),
    "two functions of one": (
        lambda x: lax.associative_scan(jnp.maximum, x) - lax.associative_scan(jnp.minimum, x),
        (normal(0, 50, 3),),
    ),
    "mapped gradients": (
        jax.vmap(jax.grad(lambda a, x: jnp.sum(recurrence(a, x) ** 2), (0, 1))),
        (decays(0, 4, 33, 5), normal(1, 4, 33, 5)),
    ),
}


def of_floats(args: tuple[Any, ...]) -> tuple[int, ...]:
    """The places of the arguments that have derivatives."""
    return tuple(k for k, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating))


def gradient(f: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """The gradient of a sum of sines of the results, and these."""

    def loss(*args: Any) -> Any:
        return jnp.sum(jnp.sin(f(*args)))

    return jax.value_and_grad(loss, of_floats(args))


FORMS = {**{name: form for name, form in (GRADIENTS | VALUES).items()},
         **{f"{name}, gradient": (gradient(f, args), args) for name, (f, args) in GRADIENTS.items()}}  # fmt: skip


def decisions(f: Callable[..., Any], *args: Any) -> list[Any]:
    """What the pass decided."""
    return [d for d in ag.explain(f)(*args).decisions if d.rule == NAME]


def holds_tree(f: Callable[..., Any], *args: Any) -> bool:
    """Whether slices that take every other entry are left."""
    return re.search(r"strides=\((1, )*2", str(jax.make_jaxpr(f)(*args))) is not None


def assert_close(got: Any, wanted: Any, tolerance: float) -> None:
    """Each of the arrays, within so much of its largest number."""
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        x, y = (np.asarray(v, np.complex128) for v in (x, y))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(initial=0.0), 1e-6))


@pytest.mark.parametrize("name", FORMS)
def test_the_tree_goes(name: str) -> None:
    """A loop, or JAX's own accumulation, stands for all levels, and the numbers are those of the tree."""
    f, args = FORMS[name]
    assert holds_tree(f, *args)
    found = decisions(f, *args)
    assert found
    assert all(d.fired for d in found), found
    if not name.startswith("sums"):
        assert not holds_tree(ag.optimize(f), *args)
    assert_close(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args), 2e-2 if name == "bfloat16" else 2e-5)


def halved(p: Any, q: Any) -> Any:
    """A function that is not associative."""
    return (p + q) / 2


STAYS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "not associative": (lambda x: lax.associative_scan(halved, x), (normal(0, 50),), "not associative"),
    "a difference": (lambda x: lax.associative_scan(jnp.subtract, x), (normal(0, 50),), "not associative"),
    "derivatives of maxima": (
        *(lambda f: (gradient(f, (normal(0, 50),)), (normal(0, 50),)))(VALUES["maxima"][0]),
        "order",
    ),
    "second derivatives": (
        jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(recurrence(PAIR[0], x) ** 3))(x) ** 2)),
        PAIR[1:],
        "more than its gradient",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_the_tree_stays(name: str) -> None:
    """With the reason, and bit for bit what it was."""
    f, args, reason = STAYS[name]
    found = decisions(f, *args)
    assert found
    assert not any(d.fired for d in found)
    assert all(reason in d.reason for d in found), found
    assert_close(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args), 1e-6)


LEFT: dict[str, Form] = {
    "few entries": (recurrence, (decays(0, 7, 4), normal(1, 7, 4))),
    "halves of an array": (lambda x: x[::2] + x[1::2], (normal(0, 64),)),
    "halves of halves": (lambda x: (y := x[:-1:2] * x[1::2])[:-1:2] + y[1::2], (normal(0, 64),)),
    "sums in pairs": (lambda x: sum_in_pairs(x), (normal(0, 64),)),
}


def sum_in_pairs(x: Any) -> Any:
    """A tree that only goes down: its result is the sum."""
    while len(x) > 1:
        x = x[:-1:2] + x[1::2]
    return x


@pytest.mark.parametrize("name", LEFT)
def test_what_is_no_such_tree_has_no_decision(name: str) -> None:
    """Slices that take every other entry are common."""
    f, args = LEFT[name]
    assert decisions(f, *args) == []


def test_strict_numbers_keep_the_tree() -> None:
    """A loop adds up in another order."""
    f, args = GRADIENTS["recurrence"]
    assert not [d for d in ag.explain(f, numerics="strict")(*args).decisions if d.rule == NAME and d.fired]


def test_the_gradient_is_taken_of_the_loop() -> None:
    """`ag.grad` differentiates the loop, and a function that is optimised has the derivatives of the tree."""
    f, args = GRADIENTS["recurrence"]
    loss = lambda *args: jnp.sum(jnp.sin(f(*args)))  # noqa: E731
    wanted = jax.jit(jax.grad(loss, (0, 1)))(*args)
    assert_close(jax.jit(ag.grad(loss, argnums=(0, 1)))(*args), wanted, 2e-5)
    assert_close(jax.jit(jax.grad(ag.optimize(loss), (0, 1)))(*args), wanted, 2e-5)


def test_ties_keep_their_derivative() -> None:
    """Equal maxima share a derivative as the tree says, also in a gradient of the optimised function."""
    x = jnp.ones(16)
    f = lambda x: jnp.sum(lax.associative_scan(jnp.maximum, x) * jnp.arange(16.0))  # noqa: E731
    wanted = jax.grad(f)(x)
    assert_close(jax.grad(ag.optimize(f))(x), wanted, 1e-6)
    assert_close(ag.grad(f)(x), wanted, 1e-6)


def test_less_memory_than_the_tree() -> None:
    """The gradient keeps a few arrays of all steps; the tree keeps those of all levels."""
    f, args = gradient(recurrence, PAIR), (decays(0, 1000, 64), normal(1, 1000, 64))
    tree, loop = (jax.jit(g).lower(*args).compile().memory_analysis() for g in (f, ag.optimize(f)))
    assert tree is not None
    assert loop is not None
    assert 2 * loop.temp_size_in_bytes < tree.temp_size_in_bytes


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "recurrence": joined,
    "sums": lambda p, q: (p[0] + q[0], p[1] + q[1]),
    "rotations": lambda p, q: (p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0]),
    "reset": lambda p, q: (p[0] * q[0], jnp.where(q[0] > 0.7, q[1], p[1] + q[1])),
    "weighted means": lambda p, q: ((n := p[0] + q[0]), (p[0] * p[1] + q[0] * q[1]) / n),
}


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    steps=st.integers(1, 70),
    batch=st.sampled_from([(), (3,), (2, 3)]),
    data=st.data(),
)
def test_any_tree_keeps_its_numbers(name: str, steps: int, batch: tuple[int, ...], data: Any) -> None:
    """Of any number of entries, along any axis, in both directions; whether it fires or not."""
    axis = data.draw(st.integers(0, len(batch)))
    shape = (*batch[:axis], steps, *batch[axis:])
    args = decays(steps, *shape), 0.2 * normal(steps + 1, *shape)
    reverse = data.draw(st.booleans())

    def f(*args: Any) -> Any:
        return lax.associative_scan(FUNCTIONS[name], args, axis=axis, reverse=reverse)

    def loss(*args: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in f(*args))

    for g in (f, jax.grad(loss, (0, 1))):
        assert_close(jax.jit(ag.optimize(g))(*args), jax.jit(g)(*args), 5e-5)
