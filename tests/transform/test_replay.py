"""Loops with chosen memory: the derivatives of plain ones, the number of steps and of carries that was promised."""

from collections.abc import Callable
from functools import partial
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel.compiler import DEFAULT_PASSES
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
    told = place.to_go(np.array([steps]), np.array([place.snapshots]), place.reach)[0]
    assert made == round(float(told))


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


def test_a_linear_loop_is_transposed() -> None:
    """`jax.linear_transpose` goes through a loop with snapshots as through a plain one, in a compiled function too."""

    def run(checkpoint: Any, c: Any, xs: Any) -> Any:
        return ag.scan(lambda c, x: (W @ c + x, c), c, xs, checkpoint=checkpoint)[1]

    def of(checkpoint: Any) -> Any:
        return jax.jit(jax.linear_transpose(partial(run, checkpoint), C, jnp.stack([C, C])))(jnp.stack([C, 2 * C]))

    agree(of(1), of("all"))


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


def temporary_bytes(f: Any, *args: Any) -> int:
    """What XLA plans for what is neither argument nor result."""
    analysis = jax.jit(f).lower(*args).compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize("optimised", [False, True])
def test_as_many_carries_as_promised(optimised: bool) -> None:
    """Memory is that of the snapshots and a few carries more, for constants too, also when Aerogel optimises."""
    steps, carry = 256, jnp.linspace(0.0, 1.0, 4096)

    def in_carries(checkpoint: Any) -> float:
        def loss(scale: Any, carry: Any) -> Any:  # `scale` is a constant of the loop, as large as the carry
            step = lambda c, _: (jnp.sin(scale * c) + 0.1 * c * c, None)  # noqa: E731
            return ag.scan(step, carry, None, length=steps, checkpoint=checkpoint)[0].sum()

        gradient = jax.value_and_grad(loss, (0, 1))
        # Small loops as kernels keep what a stretch of steps stacks twice: 256 kB here, and nothing where that is much.
        passes = [one for one in DEFAULT_PASSES if one.name != "loop-kernel"]
        form = ag.optimize(gradient, passes=passes, rules=ag.rules.default) if optimised else gradient
        return temporary_bytes(form, carry, carry) / carry.nbytes

    assert in_carries("all") > steps
    assert in_carries("sqrt") < (2 * steps) ** 0.5 + 8
    assert in_carries("log") < 9 + 8
    assert in_carries(3) < 3 + 8


def test_a_loop_of_unknown_length_keeps_no_more() -> None:
    """The bound says how many steps there may be, and nothing is kept for those that are not made."""
    carry = jnp.linspace(0.0, 1.0, 4096)

    def loss(scale: Any, carry: Any) -> Any:
        step = lambda c: jnp.sin(scale * c) + 0.1 * c * c  # noqa: E731
        return ag.while_loop(lambda c: c[1] < 0.5, step, carry, max_steps=10_000, checkpoint=5).sum()

    assert temporary_bytes(jax.value_and_grad(loss, (0, 1)), carry, carry) < (5 + 8) * carry.nbytes


class Cell(ag.Module):
    weight: Any
    kind: str = "plain"

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.weight * x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_carries_hold_anything(dtype: str) -> None:
    """Modules, keys, integers, strings and None in carry, inputs and results; of every dtype, its gradient in that."""

    def loss(checkpoint: Any, cell: Any, layers: Any, key: Any) -> Any:
        def step(state: Any, layer: Any) -> Any:
            x, key, n, cell, how = state
            key, drawn = jax.random.split(key)
            x = how(cell(x) + layer(x)) * jax.random.uniform(drawn).astype(x.dtype)
            return (x, key, n + 1, cell, how), (x, None, "text", key)

        start = jnp.ones(2, dtype), key, 0, cell, jnp.sin
        (x, *_), (xs, none, text, keys) = ag.scan(step, start, layers, checkpoint=checkpoint)
        assert (none, text, keys.shape) == (None, "text", (7,))
        return (jnp.abs(x).sum() + jnp.abs(xs).sum()).astype(jnp.float32)

    args = Cell(jnp.asarray(0.4, dtype)), Cell(jnp.linspace(0.1, 0.8, 7).astype(dtype)), jax.random.key(0)
    got, want = (jax.jit(ag.grad(loss, (1, 2)), static_argnums=0)(choice, *args) for choice in (3, "all"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_allclose(np.asarray(a, complex), np.asarray(b, complex), rtol=2e-2, atol=2e-2)


def test_counted_loops_and_loops_that_reach_their_bound() -> None:
    """`fori_loop` has gradients by snapshots; a loop ends after `max_steps`; JAX's axis names and types stay."""
    of = lambda choice: lambda w: ag.fori_loop(2, 9, lambda i, c: jnp.sin(c * w) + i, w, checkpoint=choice)  # noqa: E731
    agree(jax.grad(of(2))(0.5), jax.grad(of("all"))(0.5))
    double = lambda x: ag.while_loop(lambda c: c < 100.0, lambda c: 2 * c, x, max_steps=3)  # noqa: E731
    assert [float(x) for x in jax.value_and_grad(double)(1.0)] == [8.0, 8.0]
    assert [float(x) for x in jax.value_and_grad(double)(200.0)] == [200.0, 1.0]

    def summed(choice: Any) -> Loss:
        step = lambda w: lambda c, _: (w * c + jax.lax.psum(c, "b"), c)  # noqa: E731
        one = lambda w, x: ag.scan(step(w), x, None, length=4, checkpoint=choice)[1].sum()  # noqa: E731
        return lambda w: jax.vmap(one, (None, 0), axis_name="b")(w, jnp.arange(3.0)).sum()

    agree(jax.grad(summed(2))(0.5), jax.grad(summed("all"))(0.5))
    halved = lambda x: ag.scan(lambda c, _: (c * 0.5, c), x, None, length=3, checkpoint=2)  # noqa: E731
    weak = jax.eval_shape(lambda x: jax.vjp(halved, x)[0], 1.0)
    assert all(x.weak_type for x in jax.tree.leaves(weak))


def test_shardings_of_types_are_kept() -> None:
    """Under a mesh of explicit axes the gradient has the sharding of what it is the gradient of."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.linspace(0.0, 1.0, 8), sharding)

        def loss(choice: Any, x: Any, w: Any) -> Any:
            c, cs = ag.scan(lambda c, _: (jnp.sin(w * c), c), x, None, length=5, checkpoint=choice)
            return c.sum() + cs.sum()

        got, want = (jax.jit(jax.grad(loss, (1, 2)), static_argnums=0)(choice, x, 0.5) for choice in (2, "all"))
        agree(got, want)
        assert got[0].sharding.is_equivalent_to(sharding, 1)
        bounded = lambda x: ag.while_loop(lambda c: c.sum() < 9.0, lambda c: 1.5 * c, x, max_steps=9).sum()  # noqa: E731
        assert jax.jit(jax.grad(bounded))(x).sharding.is_equivalent_to(sharding, 1)


@pytest.mark.parametrize(
    ("call", "argument", "to_fix"),
    [
        (lambda step: ag.scan(step, 1.0, None, 3, checkpoint=_as_any("sqr")), "checkpoint", "write checkpoint='sqrt'"),
        (lambda step: ag.scan(step, 1.0, None, 3, checkpoint=0), "checkpoint", "pass 'all'"),
        (lambda step: ag.scan(step, 1.0, None, 3, checkpoint=True), "checkpoint", "pass 'all'"),
        (lambda step: ag.scan(_printing, 1.0, None, 3, checkpoint=2), "checkpoint", "take them out"),
        (lambda step: jax.eval_shape(_counted, 3), "checkpoint", "use `ag.while_loop`"),
        (lambda step: ag.while_loop(jnp.isnan, jnp.sin, 1.0, checkpoint=2), "max_steps", "say how many"),
        (lambda step: ag.while_loop(jnp.isnan, jnp.sin, 1.0, max_steps=_as_any(2.5)), "max_steps", "pass a number"),
    ],
    ids=["word", "zero", "bool", "effect", "bounds", "no bound", "no number"],
)
def test_what_cannot_be_is_told_at_the_call(call: Any, argument: str, to_fix: str) -> None:
    """Each mistake names the argument and what to do, before anything is differentiated."""
    with pytest.raises(ag.UsageError) as error:
        call(lambda c, _: (c, None))
    assert error.value.argument == argument
    assert to_fix in str(error.value)


def _as_any(value: Any) -> Any:
    return value


def _counted(steps: Any) -> Any:
    return ag.fori_loop(0, steps, lambda i, c: c, 1.0, checkpoint=2)


def _printing(carry: Any, _: Any) -> Any:
    jax.debug.print("{}", carry)
    return carry, None


def test_flags_are_carried() -> None:
    """A Python bool and a key in the carry, which have no derivative, are put back where they were."""

    def loss(w: Any, checkpoint: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            key, flag, c = carry
            key, drawn = jax.random.split(key)
            c = jnp.tanh(w * c + jnp.where(flag, x, jax.random.normal(drawn)))
            return (key, ~flag, c), None

        return ag.scan(step, (jax.random.key(0), True, 1.0), XS, checkpoint=checkpoint)[0][2]

    agree(jax.value_and_grad(loss)(0.5, 2), jax.value_and_grad(loss)(0.5, "all"))
