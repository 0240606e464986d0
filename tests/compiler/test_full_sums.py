"""What does not vary along a sum leaves it, and what several sums need is summed once; the numbers stay."""

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
from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler import Decision
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes import full_sums
from aerogel.compiler.passes.full_sums import FullSums
from compiler.programs_of import FAST, STRICT, run, traced

N = 100_000


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Normal numbers; of integers, of the whole range."""
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return jnp.asarray(rng.integers(info.min, info.max, shape, dtype))
    imaginary = 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else 0
    return jnp.asarray(rng.normal(size=shape) + imaginary, dtype)


def passed(f: Callable[..., Any], *args: Any, context: Any = FAST) -> tuple[ClosedJaxpr, ClosedJaxpr, list[Decision]]:
    """The program, what the pass makes of it, and what it decided."""
    before = normalize(traced(f, *args))[0]
    after, decisions = FullSums()(before, context)
    return before, after, decisions


def large(program: ClosedJaxpr, size: int = N) -> list[str]:
    """What is computed entry by entry, or summed up, in a program without inner ones."""
    return [e.primitive.name for e in program.jaxpr.eqns if max(x.aval.size for x in (*e.invars, *e.outvars)) >= size]


def assert_near(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    """Equal types, and values up to rounding; integers bit by bit."""
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        x, y = np.asarray(a), np.asarray(b)
        if x.dtype.kind in "iu":
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, np.abs(y).max(initial=0)))


def assert_fires(f: Callable[..., Any], *args: Any, tolerance: float = 2e-5) -> ClosedJaxpr:
    """The pass fires, and its program gives the same."""
    before, after, decisions = passed(f, *args)
    assert any(d.fired for d in decisions), before
    assert_near(run(after, *args), run(before, *args), tolerance)
    return after


X, Y, A, B = values(N), values(N, seed=1), values(300), values(500)
MU, S = jnp.float32(0.3), jnp.float32(1.7)


def log_density(t: Any, x: Any) -> Any:
    """Of normal numbers, from the library."""
    return jnp.sum(jax.scipy.stats.norm.logpdf(x, t[0], t[1]))


def test_the_gradient_of_a_density_is_two_sums() -> None:
    """Of a normal density and its gradient three sums are left, of what needs no more than a product each."""
    before, after, decisions = passed(jax.value_and_grad(log_density), jnp.stack([MU, S]), X)
    assert {d.exactness for d in decisions if d.fired} == {"finite"}
    assert len(large(before)) > 10
    assert sorted(large(after)) == ["mul", "reduce_sum", "reduce_sum", "sub"]
    assert_near(run(after, jnp.stack([MU, S]), X), run(before, jnp.stack([MU, S]), X))


FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a constant": (lambda x, c: jnp.sum(jnp.broadcast_to(c, x.shape)), (X, MU)),
    "factors": (lambda x, a, b: jnp.sum(-(a * x) / b * 2 + 0), (X, MU, S)),
    "of a product": (lambda x, y, a: jnp.sum(a * x * (y * a)), (X, Y, MU)),
    "two sums of one value": (lambda x, a, b: (jnp.sum(a * x * x), jnp.sum(x * (x / b))), (X, MU, S)),
    "beside a product": (lambda x, a, b: jnp.sum(a * x * x + b * b + a), (X, MU, S)),
    "over pairs": (lambda a, b: jnp.sum(a[:, None] * b + a[:, None] + 2), (A, B)),
    "a square over pairs": (lambda a, b: jnp.sum((a[:, None] * b) ** 2), (A, B)),
    "rows": (lambda x, a: (x.reshape(10, -1) * a[:, None] * a[:, None] / 3).sum(1), (X, A[:10])),
    "columns": (lambda x, a: (x.reshape(-1, 10) * a * a / 3).sum(0), (X, A[:10])),
    "an inner axis": (lambda x, a: (x.reshape(4, -1, 5) * a.T[:, None] * 3 / a[0, 0]).sum(1), (X, values(5, 4))),
    "batched": (jax.vmap(lambda x, a: jnp.sum(a * x / 3 * a)), (X.reshape(4, -1), A[:4])),
    "in a loop": (lambda x, a: lax.scan(lambda c, r: (c + jnp.sum(c * r * a), None), a, x.reshape(4, -1))[0], (X, MU)),
    "a weak type": (lambda x, a: jnp.sum(x * a * 2.0 * a) * 2.0, (X, MU)),
}


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name: str) -> None:
    """Each form is found, and its results stay what they were."""
    f, args = FIRES[name]
    assert_fires(f, *args)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "complex64"])
def test_other_types(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers wrap around, whatever is taken apart; complex numbers are numbers."""
    monkeypatch.setattr(full_sums, "MARGIN", 1.0)  # of integers four sums for two save little
    x, y, a = values(N, dtype=dtype), values(N, seed=1, dtype=dtype), values(dtype=dtype)
    after = assert_fires(lambda x, y, a: (jnp.sum(a * x * a), jnp.sum((x - 3) * (y - a))), x, y, a, tolerance=1e-4)
    assert large(after).count("sub") == (0 if np.dtype(dtype).kind in "iu" else 2)


def test_double_precision() -> None:
    """Also of float64, where the numbers are near to each other."""
    with jax.enable_x64(True):
        x, t = values(N, dtype="float64"), jnp.asarray([0.3, 1.7], "float64")
        before, after, decisions = passed(jax.value_and_grad(log_density), t, x)
        assert any(d.fired for d in decisions)
        assert_near(run(after, t, x), run(before, t, x), 1e-12)


def untouched(f: Callable[..., Any], *args: Any, context: Any = FAST) -> list[str]:
    """The reasons why nothing is done."""
    before, after, decisions = passed(f, *args, context=context)
    assert after is before
    return [d.reason for d in decisions]


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "terms that cancel": (lambda x, y: jnp.sum(x - y), (X, X + 1e-3)),
    "a center": (lambda x, c: jnp.sum(x - c), (X, MU)),
    "a product of differences": (lambda a, b: jnp.sum((a[:, None] - b) * (a[:, None] + b)), (A, B)),
    "a function": (lambda x, c: jnp.sum(jnp.tanh(c * x)), (X, MU)),
    "an overflow": (lambda x: jnp.sum(x * 1e30 * 1e30), (X,)),
    "an underflow": (lambda x: jnp.sum(x * 1e-30 * 1e-30), (X,)),
    "bfloat16": (lambda x, c: lax.reduce_sum((c * x * c).astype("bfloat16"), (0,)), (X, MU)),
    "other factors": (lambda x, c: jnp.sum(c * x), (X, Y)),
    "few entries": (lambda x, c: jnp.sum(c * x * c / 3), (X[:1000], MU)),
    "no entries": (lambda x, c: jnp.sum(c * x * c), (X[:0], MU)),
    "short rows": (lambda x, c: jnp.sum(c * x.reshape(-1, 4) * c, 1), (X, MU)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What would lose digits, overflow, or save nothing stays as it is."""
    f, args = NEAR_MISSES[name]
    assert untouched(f, *args) == []


@pytest.mark.parametrize("n", [10_000, N, 10 * N])
def test_one_sum_of_a_function_and_its_derivative_stays(n: int) -> None:
    """Distributed it would be four sums, for which XLA stores the function: 1.5 to 3.5 times the time."""
    x, y = values(n), values(n, seed=1)
    reasons = untouched(lambda x, y: jnp.sum(jax.vmap(jax.grad(lambda x, y: jax.nn.gelu(x) * y))(x, y)), x, y)
    assert [reason.split(" would")[0] for reason in reasons] == ["distributed they"]


def test_what_makes_a_value_is_not_saved() -> None:
    """However many operations that is: they are needed for the sums that would come instead, too."""

    def f(x: Any, y: Any, z: Any) -> Any:
        u = jnp.exp(jnp.tanh(jnp.sin(x)))
        return jnp.sum(3 * u * y * 2 + u * z)

    reasons = untouched(f, X, Y, values(N, seed=2))
    assert [reason.split(" would")[0] for reason in reasons] == ["distributed they"]


def test_says_what_does_not_pay() -> None:
    """One pass instead of two is left, and the report says why; so is all that reassociates under "strict"."""
    reasons = untouched(lambda x, y, z: jnp.sum(x * y + x * z), X, Y, values(N, seed=2))
    assert [reason.split(" would")[0] for reason in reasons] == ["distributed they"]
    assert untouched(jax.grad(log_density), jnp.stack([MU, S]), X, context=STRICT) == []
    integers = (values(N, dtype="int32"), jnp.int32(3))
    assert any(d.fired for d in passed(lambda x, a: jnp.sum(a * x * a), *integers, context=STRICT)[2])


def test_a_center_keeps_its_digits() -> None:
    """Around a large mean the gradient is as good as that of the program as it was written."""
    x, t = X + 4096, jnp.asarray([4096.0, 1.7], "float32")
    truth = np.asarray(x, np.float64) - 4096
    want = [truth.sum() / 1.7**2, (truth**2).sum() / 1.7**3 - N / 1.7]
    got = np.asarray(jax.jit(ag.optimize(jax.grad(log_density)))(t, x))
    plain = np.asarray(jax.jit(jax.grad(log_density))(t, x))
    assert (np.abs(got - want) <= 2 * np.abs(plain - want) + 1e-6 * np.abs(want)).all()


def test_before_differentiation_too() -> None:
    """A gradient that is taken outside stores less, and is the same, twice differentiated too."""
    t, plain = jnp.stack([MU, S]), jax.value_and_grad(log_density)
    f, g = jax.jit(jax.value_and_grad(ag.optimize(log_density))), jax.jit(plain)
    temp = [h.lower(t, X).compile().memory_analysis().temp_size_in_bytes for h in (f, g)]
    assert temp[0] <= 0.55 * temp[1]
    assert_near(jax.tree.leaves(f(t, X)), jax.tree.leaves(g(t, X)))
    twice = [[jax.jit(jax.hessian(h))(t, X)] for h in (ag.optimize(log_density), log_density)]
    assert_near(twice[0], twice[1], 1e-4)


OPERANDS = ("x", "y", "x[:1]", "a", "b", "2.0", "(-0.5)", "jnp.ones_like(x)", "x[0]")


@st.composite
def formulas(draw: st.DrawFn, depth: int = 4) -> str:
    """Sums, products and quotients of arrays, of what varies along one axis, and of numbers."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(OPERANDS))
    one = draw(formulas(depth - 1))
    form = draw(st.sampled_from(("{} + {}", "{} - {}", "{} * {}", "{} * {}", "{} / c", "-{}", "{}**2")))
    return f"({form.format(one, draw(formulas(depth - 1)))})" if form.count("{}") == 2 else f"({form.format(one)})"


@settings(max_examples=12)
@given(st.lists(formulas(), min_size=1, max_size=3), st.sampled_from((None, 0, 1)), st.booleans())
def test_any_polynomial(texts: list[str], axis: int | None, of_integers: bool) -> None:
    """Whatever is summed and along what, priced as if it always paid: as NumPy has it, of integers bit by bit."""
    if of_integers:
        texts = [text.replace(" / c", " * c").replace("2.0", "2").replace("(-0.5)", "(-5)") for text in texts]
    dtype = "int32" if of_integers else "float32"
    names = ("x", "y", "a", "b", "c")
    args = (values(6, 5, dtype=dtype), *(values(*s, seed=1, dtype=dtype) for s in ((6, 5), (6, 1), (5,), ())))

    def sums(module: Any, texts: list[str], *args: Any) -> list[Any]:
        scope = {"jnp": module, **dict(zip(names, args, strict=True))}
        return [module.sum(module.broadcast_to(eval(text, scope), args[0].shape), axis) for text in texts]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FEWEST", 1), ("MARGIN", 1e9), ("LEAST_SECONDS", -1e9)):
            assert hasattr(full_sums, name)
            patch.setattr(full_sums, name, value)
        before, after, _ = passed(lambda *args: sums(jnp, texts, *args), *args)
    assert [x.aval for x in after.jaxpr.outvars] == [x.aval for x in before.jaxpr.outvars]
    wide = [np.asarray(x, np.int64 if of_integers else np.float64) for x in args]
    with np.errstate(all="ignore"):
        wanted = sums(np, texts, *wide)
        bounds = sums(np, [text.replace("-", "+") for text in texts], *map(np.abs, wide))
    for got, want, bound in zip(evaluate(after, args), wanted, bounds, strict=True):
        if of_integers:
            np.testing.assert_array_equal(got, want.astype(np.int32))
        else:
            assert (np.abs(got - want) <= 1e-4 * np.maximum(bound, 1e-3)).all()


def test_a_sum_that_is_there_is_not_made_again() -> None:
    """Of rows times exponentials whose sums are known, as in the derivative of a softmax, nothing is summed up."""

    def f(x: Any, y: Any) -> Any:
        e = jnp.exp(x)
        total = e.sum(1)
        return (-((y / total)[:, None] * e)).sum(1), total

    x, y = values(8, N // 8), values(8, seed=1)
    assert large(passed(f, x, y)[0]).count("reduce_sum") == 2
    after = assert_fires(f, x, y)
    assert large(after) == ["exp", "reduce_sum"]
