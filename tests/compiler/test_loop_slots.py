"""Loop slots: what each step touches at its own index becomes an input or an output of the step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.passes.loop_slots import LoopSlots
from compiler.loop_patterns import normal
from compiler.programs_of import bits

N, M = 12, 5
X = normal(0, N, M)
ZEROS = np.zeros((N, M), np.float32)


def fori(body: Callable[..., Any], init: Any, n: int = N, start: int = 0) -> Any:
    """`fori_loop` with its body first."""
    return lax.fori_loop(start, n, body, init)


TOUCHED: dict[str, Callable[[Any], Any]] = {
    "written": lambda x: fori(lambda i, b: b.at[i].set(jnp.sin(x[i])), jnp.zeros_like(x)),
    "into ones": lambda x: fori(lambda i, b: b.at[i].set(x[0] * i), jnp.ones_like(x)),
    "part written": lambda x: fori(lambda i, b: b.at[i + 2].set(x[i]), jnp.ones_like(x), n=N - 4),
    "backwards": lambda x: fori(lambda i, b: b.at[N - 1 - i].set(x[i] * 2), jnp.zeros_like(x)),
    "columns": lambda x: fori(lambda i, b: b.at[:, i].set(x[:, i] + 1), jnp.zeros_like(x), n=M),
    "update slice": lambda x: fori(lambda i, b: lax.dynamic_update_slice(b, x[i][None], (i, 0)), jnp.zeros_like(x)),
    "with a state": lambda x: fori(
        lambda i, c: (c[0] * 0.5 + x[i], c[1].at[i].set(c[0])), (x[0], jnp.zeros_like(x)))[1],
    "reversed scan": lambda x: lax.scan(
        lambda b, i: (b.at[i].set(x[i] * 3), None), jnp.zeros_like(x), jnp.arange(N), reverse=True)[0],
    "start 3": lambda x: fori(lambda i, b: b.at[i].set(x[i]), jnp.ones_like(x), start=3),
    "added": lambda x: fori(lambda i, b: b.at[i].add(jnp.sin(x[i])), x * 2),
    "part added, backwards": lambda x: fori(lambda i, b: b.at[N - 2 - i].add(x[i]), x * 2, n=N - 3),
    "read one before": lambda x: fori(lambda i, b: b.at[i].set(jnp.sin(b[i - 1]) + x[i]), x * 2, start=1),
    "read two before": lambda x: fori(lambda i, b: b.at[i].set(b[i - 1] - 0.5 * b[i - 2]), x * 2, start=2),
    "only third before": lambda x: fori(lambda i, b: b.at[i].set(b[i - 3] * x[i]), x + 1, start=3),
    "read one after, downwards": lambda x: fori(
        lambda i, b: b.at[N - 2 - i].set(b[N - 1 - i] * 0.5 + x[i]), x * 2, n=N - 1),
    "reversed scan, one before": lambda x: lax.scan(
        lambda b, i: (b.at[i].set(b[i + 1] + x[i]), None), x * 3, jnp.arange(N - 1), reverse=True)[0],
    "read one after": lambda x: fori(lambda i, b: b.at[i].set(b[i + 1] + x[i]), x * 2, n=N - 1),
    "both neighbours": lambda x: fori(
        lambda i, b: b.at[i].set(0.5 * (b[i - 1] + b[i + 1])), x * 2, n=N - 1, start=1),
    "both neighbours, downwards": lambda x: fori(
        lambda i, b: b.at[N - 1 - i].set(0.5 * (b[N - 2 - i] + b[N - i])), x * 2, n=N - 1, start=1),
    "in place": lambda x: fori(lambda i, b: b.at[i].set(jnp.sin(b[i])), x * 2),
    "exchanged": lambda x: fori(lambda i, b: b.at[i].set(b[i + 1]).at[i + 1].set(b[i]), x * 2, n=N - 1),
    "two added, overlapping": lambda x: fori(
        lambda i, b: b.at[i].add(x[i]).at[i + 1].add(x[i] * 2), x * 2, n=N - 1),
    "read after it is written": lambda x: fori(
        lambda i, c: (lambda b: (b, c[1] + b[i] ** 2))(c[0].at[i].set(jnp.sin(x[i] + c[1]))), (x * 0, x[1]))[0],
    "nobody wants it": lambda x: fori(
        lambda i, c: (c[0].at[i].set(c[1]), c[1] + c[0][i - 1]), (x * 2, x[0]), start=1)[1],
    "two buffers": lambda x: fori(
        lambda i, c: (c[0].at[i].set(x[i]), c[1].at[i].set(x[i, 0])), (jnp.zeros_like(x), jnp.zeros(N))),
}  # fmt: skip
LEFT: dict[str, Callable[[Any], Any]] = {
    "read before": lambda x: fori(lambda i, b: b.at[i].set(b[i - 1] + x[i]), jnp.ones_like(x)),
    "same index": lambda x: fori(lambda i, b: b.at[0].set(b[0] + i), jnp.zeros_like(x)),
    "read far before": lambda x: fori(lambda i, b: b.at[i].set(b[i - 9] + x[i]), x * 2, start=9),
    "read two ways": lambda x: fori(lambda i, b: b.at[i].set(b[i - 1] + b[N - 1 - i]), x * 2, start=1),
    "every second": lambda x: fori(lambda i, b: b.at[2 * i].set(1.0), jnp.zeros_like(x), n=N // 2),
    "out of range": lambda x: fori(lambda i, b: b.at[i + 3].set(1.0), jnp.zeros_like(x)),
    "index from data": lambda x: fori(lambda i, b: b.at[x[i, 0].astype(int)].set(1.0), jnp.zeros_like(x)),
    "scatter add": lambda x: fori(lambda i, b: b.at[i % 3].add(x[i]), jnp.zeros_like(x)),
    "also read whole": lambda x: fori(lambda i, b: b.at[i].set(b.sum(0) + x[i]), jnp.ones_like(x)),
}


def optimised(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(LoopSlots(),), **options)


def carried(f: Callable[..., Any], *args: Any) -> int:
    """Carries of buffers' size over all loops."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    return sum(
        v.aval.size >= N
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "scan"
        for v in eqn.outvars[: _jax.scan_counts(eqn.params)[1]]
    )


@pytest.mark.parametrize("name", TOUCHED)
def test_a_buffer_is_carried_no_more(name: str) -> None:
    """The natural loop carries the buffer, the other one stacks rows; bits are the same, under strict too."""
    f = TOUCHED[name]
    assert carried(f, X) >= 1
    assert carried(optimised(f), X) == 0
    for options in ({}, {"numerics": "strict"}):
        assert bits(jax.tree.leaves(jax.jit(optimised(f, **options))(X))) == bits(jax.tree.leaves(jax.jit(f)(X)))


@pytest.mark.parametrize("name", LEFT)
def test_what_is_no_slot_is_left(name: str) -> None:
    """Buffers that steps share stay carries, and bits stay."""
    f = LEFT[name]
    assert carried(optimised(f), X) == carried(f, X) >= 1
    assert bits(jax.tree.leaves(jax.jit(optimised(f))(X))) == bits(jax.tree.leaves(jax.jit(f)(X)))


# Their gradients add to a row or to single numbers that are at one place in all steps, and carry those whole.
FIXED = {"into ones": 1, "two buffers": 1}


@pytest.mark.parametrize("name", TOUCHED)
def test_gradients(name: str) -> None:
    """Gradients of the rewritten loop, and the rewritten gradient, are the natural one's, and carry no buffer."""

    def f(g):
        return lambda x: sum((jnp.cos(y) * y).sum() for y in jax.tree.leaves(g(x)))

    want = jax.jit(jax.grad(f(TOUCHED[name])))(X)
    for g in (jax.grad(f(optimised(TOUCHED[name]))), optimised(jax.grad(f(TOUCHED[name])))):
        np.testing.assert_allclose(jax.jit(g)(X), want, rtol=1e-5, atol=1e-6)
    natural = jax.grad(f(TOUCHED[name]))
    assert carried(optimised(natural), X) == FIXED.get(name, 0) < carried(natural, X)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("downwards", [False, True])
def test_stacked_indices_keep_their_order(reverse: bool, downwards: bool) -> None:
    """A buffer that is filled from its end is made by a loop that runs the other way; what it counts is not turned."""

    def f(x: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            i, b = state
            j = N - 1 - i if downwards else i
            return (i + 1, b.at[j].set(jnp.sin(x[j]))), (j, 2 * i)

        return lax.scan(step, (0, jnp.zeros_like(x)), None, length=N, reverse=reverse)

    assert carried(f, X) == 1
    assert carried(optimised(f), X) == 0
    jax.tree.map(np.testing.assert_array_equal, jax.jit(optimised(f))(X), jax.jit(f)(X))


@pytest.mark.parametrize("name", TOUCHED)
def test_second_derivatives(name: str) -> None:
    """JAX stacks the indices of a loop for its gradient, and takes them up again in the gradient of that."""

    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: sum(jnp.sin(y).sum() for y in jax.tree.leaves(TOUCHED[name](x))))(x)

    second = jax.grad(lambda x: (jnp.sin(gradient(x)) * X).sum())
    for f in (second, jax.vmap(second)):
        x = X if f is second else jnp.stack([X, X + 1])
        np.testing.assert_allclose(jax.jit(optimised(f))(x), jax.jit(f)(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.bool_, jnp.complex64])
def test_types(dtype: Any) -> None:
    """Buffers of other types keep type and bits."""

    def f(x):
        return fori(lambda i, b: b.at[i].set(~x[i] if dtype == jnp.bool_ else x[i] * 3), jnp.zeros_like(x))

    x = jnp.asarray(X * 9, dtype)
    assert carried(optimised(f), x) == 0
    assert bits([jax.jit(optimised(f))(x)]) == bits([jax.jit(f)(x)])


def test_keys() -> None:
    """A buffer of typed keys too."""
    keys = jax.random.split(jax.random.key(0), N)

    def f(k):
        return fori(lambda i, b: b.at[i].set(jax.random.fold_in(k[i], i)), k)

    assert bits([jax.jit(optimised(f))(keys)]) == bits([jax.jit(f)(keys)])


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_loops(length: int) -> None:
    """Loops of no, one and two steps."""

    def f(x):
        return fori(lambda i, b: b.at[i].set(x[i]), jnp.ones_like(x), n=length)

    assert bits([jax.jit(optimised(f))(X)]) == bits([jax.jit(f)(X)])


def test_empty_rows() -> None:
    """Rows without elements."""
    f, x = TOUCHED["written"], X[:, :0]
    assert jax.jit(optimised(f))(x).shape == (N, 0)


def test_x64() -> None:
    """64-bit counters."""
    with jax.enable_x64(True):
        x = X.astype(np.float64)
        for f in TOUCHED.values():
            assert carried(optimised(f), x) == 0
            assert bits(jax.tree.leaves(jax.jit(optimised(f))(x))) == bits(jax.tree.leaves(jax.jit(f)(x)))


def test_columns_read_one_before() -> None:
    """Columns that are written one after the other; each reads the one before."""

    def f(x: Any) -> Any:
        return fori(lambda i, b: b.at[:, i].set(b[:, i - 1] + 1), x * 2, n=M, start=1)

    (carry,) = [v for e in jax.make_jaxpr(optimised(f))(X).jaxpr.eqns if e.primitive.name == "scan" for v in e.outvars
                if v.aval.ndim == 1]  # fmt: skip
    assert carry.aval.shape == (N,)
    assert bits([jax.jit(optimised(f))(X)]) == bits([jax.jit(f)(X)])


def copies(f: Callable[..., Any], x: Any) -> list[Any]:
    """Slices and reversals of a large input outside of loops."""
    eqns = jax.make_jaxpr(f)(x).jaxpr.eqns
    return [e for e in eqns if e.primitive.name in ("slice", "rev", "transpose") and e.invars[0].aval.size == x.size]


def test_a_part_of_a_large_input_is_not_copied() -> None:
    """Reading `x[i + 1]` of a large `x` stays a read, or the loop would go over `x` three times.

    Before a gradient it becomes an input, whose gradient is linear in the steps.
    """
    x = normal(0, N, 4096)

    def f(x: Any) -> Any:
        return fori(lambda i, c: 0.5 * c + jnp.sin(x[i + 1]), x[0], n=N - 1)

    reports: list[Any] = []
    assert len(copies(optimised(f), x)) == len(copies(f, x))
    jax.make_jaxpr(optimised(f, on_report=reports.append))(x)
    assert [d.reason for d in reports[-1].refused] == ["it would be copied for the loop"]
    small = normal(0, N, M)
    assert len(copies(optimised(f), small)) == len(copies(f, small)) + 1
    assert bits([jax.jit(optimised(f))(x)]) == bits([jax.jit(f)(x)])
    np.testing.assert_allclose(
        jax.grad(lambda x: optimised(f)(x).sum())(x), jax.grad(lambda x: f(x).sum())(x), rtol=1e-5
    )


def test_columns_of_a_large_input_are_read_at_once_where_nothing_is_carried() -> None:
    """In the gradient of a map that is written as a loop, forward and backward loop are one operation each."""
    x = normal(0, 33, 801)
    assert x.nbytes > 65_536

    def f(x: Any) -> Any:
        return fori(lambda i, y: y.at[:, i].set(jnp.tanh(x[:, i]) * x[:, i]), jnp.zeros_like(x), n=801)

    gradient = jax.value_and_grad(lambda x: jnp.mean(f(x) ** 2))
    loops = [e for e in jax.make_jaxpr(gradient)(x).jaxpr.eqns if e.primitive.name == "scan"]
    assert len(loops) == 2
    eqns = jax.make_jaxpr(ag.optimize(gradient))(x).jaxpr.eqns
    assert not [e for e in eqns if e.primitive.name in ("scan", "one_kernel")]
    for got, want in zip(jax.jit(ag.optimize(gradient))(x), jax.jit(gradient)(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    carried = lambda x: fori(lambda i, c: jnp.tanh(c + x[:, i]), x[:, 0], n=801)  # noqa: E731
    reports: list[Any] = []
    jax.make_jaxpr(optimised(carried, on_report=reports.append))(x)
    assert [d.reason for d in reports[-1].refused] == ["it would be copied for the loop"]
