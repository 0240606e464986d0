"""Loops with chosen memory: the derivatives of plain ones, the number of steps and of carries that was promised."""

from collections.abc import Callable
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel.transform.snapshots import Placement

W = jnp.array([[0.5, 0.2], [-0.3, 0.8]])
C = jnp.array([0.3, -0.2])
XS = jnp.linspace(0.1, 1.0, 6)
Loss = Callable[..., Any]


def advances(steps: int, snapshots: int) -> int:
    """How many steps must be made to go back over `steps`: Griewank and Walther 2000, proposition 1."""
    often = next(r for r in range(steps + 1) if comb(snapshots + r, r) >= steps)
    return often * steps - comb(snapshots + often, often - 1) if often else 0


@settings(max_examples=300)
@given(st.integers(1, 400), st.integers(1, 30))
def test_no_placement_makes_fewer_steps(steps: int, snapshots: int) -> None:
    """Going back by the placement makes as many steps as the best one can, and never needs another snapshot."""
    place = Placement(steps, max(1, min(snapshots, steps - 1)))
    kept, made = list(place.first), place.first[-1]
    for i in reversed(range(steps)):
        while i - kept[-1] >= 2 and len(kept) < place.snapshots:
            gone = int(place.to_next(np.int32(i - kept[-1] + 1), place.snapshots - len(kept) + 1, place.reach))
            assert 0 < gone < i - kept[-1]
            made += gone
            kept.append(kept[-1] + gone)
        made += i - kept[-1]
        if kept[-1] == i:
            kept.pop()
    assert kept == []
    assert made == advances(steps, place.snapshots)


@pytest.mark.parametrize(("steps", "snapshots"), [(31, 1), (50, 2), (40, 6)])
def test_a_gradient_makes_as_many_steps_as_the_formula_says(steps: int, snapshots: int) -> None:
    """Counted on the host: the loop itself, and from its last snapshot on the steps of the formula."""
    made = 0

    def count(n: Any) -> Any:
        nonlocal made
        made += 1
        return n

    def loss(w: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, n = carry
            n = jax.pure_callback(count, jax.ShapeDtypeStruct((), jnp.int32), n)
            return (jnp.sin(w * x) + n.astype(jnp.float32), n + 1), None

        return ag.scan(step, (w, jnp.int32(0)), None, length=steps, checkpoint=snapshots)[0][0]

    jax.block_until_ready(jax.jit(jax.value_and_grad(loss))(0.5))
    last = Placement(steps, snapshots).first[-1]
    assert made == steps + advances(steps, snapshots) - last


def scanned(checkpoint: Any, reverse: bool = False) -> Loss:
    """A loss of a loop with integers and results; "all" is JAX's own loop."""

    def loss(w: Any, c: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            c, n = carry
            c = jnp.tanh(w @ c + x)
            return (c, n + 1), (c[0] * x, n)

        (c, n), (ys, ns) = ag.scan(step, (c, 0), xs, reverse=reverse, checkpoint=checkpoint)
        return jnp.sum(c**2) + jnp.sum(jnp.sin(ys)) * n + ns[0]

    return loss


def ended(checkpoint: Any) -> Loss:
    """A loss of a loop that ends when it will; "all" is a scan over all steps that there may be."""

    def loss(w: Any, c: Any, xs: Any) -> Any:
        goes_on = lambda state: state[1] < 4 * jnp.sum(xs**2)  # noqa: E731

        def step(state: Any) -> Any:
            c = jnp.tanh(w @ state[0] + 0.3)
            return c, state[1] + jnp.sum(jnp.abs(c))

        if checkpoint == "all":
            over = lambda state, _: (jax.lax.cond(goes_on(state), step, lambda s: s, state), None)  # noqa: E731
            c, total = jax.lax.scan(over, (c, 0.0), None, length=25)[0]
        else:
            c, total = ag.while_loop(goes_on, step, (c, 0.0), max_steps=25, checkpoint=checkpoint)
        return jnp.sum(jnp.sin(c)) + total**2

    return loss


def agree(got: Any, want: Any) -> None:
    """Nothing, if all numbers are near."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def again(f: Loss) -> Loss:
    """A number made of all first derivatives."""
    return lambda *args: sum(jnp.sum(jnp.cos(x)) for x in jax.grad(f, (0, 1))(*args))


def repeated(f: Loss) -> Loss:
    """`f` in the body of a loop."""

    def loss(w: Any, c: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c * 0.5 + 0.1 * f(w, c, xs), None), c, None, length=2)[0].sum()

    return loss


CS = jnp.stack([C, 2 * C, C + 1])
EACH = (None, 0, None)
WAYS: dict[str, Callable[[Loss], Any]] = {
    "jvp": lambda f: jax.jvp(f, (W, C, XS), (2 * W, C, XS)),
    "value_and_grad": lambda f: jax.value_and_grad(f, (0, 1, 2))(W, C, XS),
    "linearize": lambda f: jax.linearize(jax.jit(f), W, C, XS)[1](W, C, XS),
    "hessian": lambda f: jax.hessian(f, (0, 1))(W, C, XS),
    "reverse over reverse": lambda f: jax.grad(again(f), (0, 1))(W, C, XS),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f, 1), 1)(W, C, XS),
    "vmap": lambda f: jax.vmap(f, EACH)(W, CS, XS),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1, 2)), EACH)(W, CS, XS),
    "grad of vmap": lambda f: jax.grad(lambda *args: jax.vmap(f, EACH)(*args).sum(), (0, 1))(W, CS, XS),
    "reverse over reverse of vmap": lambda f: jax.grad(lambda c: jax.vmap(again(f), EACH)(W, c, XS).sum())(CS),
    "in checkpoint": lambda f: jax.grad(jax.checkpoint(lambda *args: jnp.sin(f(*args))), (0, 1))(W, C, XS),
    "in scan": lambda f: jax.grad(repeated(f))(W, C, XS),
    "in cond": lambda f: jax.grad(lambda w, p: jax.lax.cond(p, lambda: f(w, C, XS), lambda: 0.0))(W, True),
    "grad of jit": lambda f: jax.grad(ag.jit(f), (0, 1))(W, C, XS),
    "jit of grad": lambda f: ag.jit(ag.value_and_grad(f, (0, 1)))(W, C, XS),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [scanned, ended])
def test_every_derivative_is_that_of_the_plain_loop(make: Any, way: str) -> None:
    """First and second derivatives of all orders of modes, under and around other transformations."""
    agree(jax.jit(lambda: WAYS[way](make(2)))(), jax.jit(lambda: WAYS[way](make("all")))())


@pytest.mark.parametrize("checkpoint", ["sqrt", 1, 2, 100])
def test_all_lengths_and_both_directions(checkpoint: Any) -> None:
    """Of no steps, two, and as many as no number of snapshots divides."""

    def gradients(choice: Any, length: int, reverse: bool) -> Any:
        def loss(w: Any, c: Any, xs: Any) -> Any:
            step = lambda c, x: (jnp.tanh(w @ c + x), c * x)  # noqa: E731
            return ag.scan(step, c, xs, reverse=reverse, checkpoint=choice)[0].sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(W, C, jnp.linspace(0.1, 1.0, length))

    for length, reverse in ((0, False), (2, False), (11, True)):
        agree(gradients(checkpoint, length, reverse), gradients("all", length, reverse))
