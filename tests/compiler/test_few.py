"""How many bytes a step moves is counted as XLA counts them, which shows in which loops it calls as one function."""

import bisect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from aerogel.compiler.cost import machine
from aerogel.compiler.cost.few import step_bytes
from aerogel.compiler.loop import Loop
from compiler.programs_of import only_loop

LIMIT = machine("cpu").one_kernel_bytes


def decay(x: Any) -> Any:
    """One carry, and nothing else."""
    return lax.scan(lambda c, _: (0.9 * c + 1, None), x, None, length=50)[0]


def two_carries(x: Any) -> Any:
    """Carries that read each other."""
    return lax.scan(lambda c, _: ((0.9 * c[0] + c[1], 0.8 * c[1] + c[0]), None), (x, x), None, length=50)[0]


def stacked(x: Any) -> Any:
    """A carry that is stacked, too."""
    return lax.scan(lambda c, _: (jnp.sin(c),) * 2, x, None, length=50)


def stacked_product(x: Any) -> Any:
    """The same of a carry that a product makes."""
    w = jnp.outer(x, x)
    return lax.scan(lambda c, _: (jnp.tanh(w @ c),) * 2, x, None, length=50)


def one_stacked(x: Any) -> Any:
    """One of two carries is stacked."""

    def step(c: Any, _: Any) -> Any:
        first = 0.9 * c[0] + c[1]
        return (first, jnp.cos(c[1])), first

    return lax.scan(step, (x, x), None, length=50)


def before_stacked(x: Any) -> Any:
    """The carry at the start of each step is stacked."""
    return lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=50)


def driven(x: Any) -> Any:
    """A row of an input in each step, and an output of its own."""
    return lax.scan(lambda c, row: (0.9 * c + row, c * row), x, jnp.outer(jnp.arange(50.0), x))


def product(x: Any) -> Any:
    """A small matrix that each step reads."""
    w = jnp.outer(x, x)
    return lax.scan(lambda c, _: (jnp.tanh(w @ c), None), x, None, length=50)[0]


LOOPS: list[Callable[[Any], Any]] = [
    decay, two_carries, stacked, stacked_product, one_stacked, before_stacked, driven, product,
]  # fmt: skip


def is_one_call(f: Callable[[Any], Any], size: int) -> bool:
    """Whether XLA calls the loop as one function."""
    return "xla_cpu_small_call" in jax.jit(f).lower(jnp.ones(size)).compile().as_text()


def moved(f: Callable[[Any], Any], size: int) -> int:
    """Bytes a step, by our count."""
    loop = only_loop(f, jnp.ones(size))
    return step_bytes(loop.body, len(loop.consts), len(loop.init))


def numbers(count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A gradient of a loop over so many numbers, each a carry, whose steps read as many rows of one number."""

    def loss(p: Any, start: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            new = tuple(jnp.sin(p[i]) * c[i] + p[i - 1] * c[i - 1] * x for i in range(count))
            return new, sum(new)

        return jnp.sum(lax.scan(step, start, xs)[1] ** 2)

    given = tuple(jnp.float32(1 + i) for i in range(count))
    return jax.grad(loss, (0, 1)), (given, given, jnp.ones(300))


@pytest.mark.parametrize("count", [4, 6, 8, 10])
def test_the_number_of_the_step_is_counted_with_each_row(count: int) -> None:
    """Kernels over single numbers read the step's number as well: with 8 carries that makes the difference."""
    f, args = numbers(count)
    backward = [eqn for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns if eqn.primitive.name == "scan"][-1]
    loop = Loop(backward)
    calls = jax.jit(f).lower(*args).compile().as_text().count("xla_cpu_small_call")
    assert (step_bytes(loop.body, len(loop.consts), len(loop.init)) < LIMIT) == (calls == 2)


@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_the_border_is_where_xla_draws_it(f: Callable[[Any], Any]) -> None:
    """A loop a little below our count's limit is one call, and one a little above is none."""
    last = bisect.bisect_left(range(400), LIMIT, key=lambda n: moved(f, n + 1))
    assert moved(f, last) < LIMIT <= moved(f, last + 1)
    assert is_one_call(f, max(2, last - 1 - last // 16))
    assert not is_one_call(f, last + 2 + last // 16)
