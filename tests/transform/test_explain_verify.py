"""`explain` tells what is done and why not; `verify` sees a wrong result."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import ClosedJaxpr, Literal
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.program import with_equations
from aerogel.compiler.report import Decision

X = np.linspace(-1, 1, 4096, dtype=np.float32)
# The door of the same name hides the module.
OPTIMIZE = importlib.import_module("aerogel.transform.optimize")


def decay(x: Any, n: int = 64) -> Any:
    """A loop whose outputs are summed up."""
    return lax.scan(lambda c, _: (0.9 * c, c), x, None, length=n)[1].sum(0)


def test_a_report_holds_what_fired() -> None:
    """Name, place, equations, costs of both programs, and a decision with the user's line and its saving."""
    report = ag.explain(decay)(X)
    assert (report.name, report.failed) == ("decay", ())
    assert report.where.startswith("test_explain_verify.py:")
    assert report.seconds > 0
    assert report.equations >= 2
    (fired,) = report.fired
    assert fired.rule == "loop-fusion"
    assert fired.where.startswith("test_explain_verify.py:")
    assert fired.where.endswith(" in decay")
    assert fired.peak_bytes_saved == 64 * 4096 * 4
    assert report.after.peak_bytes < report.before.peak_bytes / 8
    assert fired.what in " ".join(str(report).split())


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "pairs": (lambda ys: jnp.abs(ys[:, None, :8] - ys[None, :, :8]).sum((0, 1)), "stands in two different places"),
    "sorted": (lambda ys: jnp.sort(ys, 0)[32], ""),
    "late": (lambda ys: (ys / ys.max(0)).sum(0), "it needs a result of the whole loop"),
    "joined": (lambda ys: (ys * ys[::-1]).sum(0), "it joins values of different steps"),
    "far apart": (lambda ys: (ys[40:] * ys[:-40]).max(0), "it joins values of steps that are 40 apart"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_a_sentence(name: str) -> None:
    """What was not done is in the report with the line and a reason in words."""
    consume, reason = REFUSED[name]

    def f(x: Any) -> Any:
        return consume(lax.scan(lambda c, _: (0.9 * c, c), x, None, length=64)[1])

    report = ag.explain(f)(X)
    assert report.refused
    for decision in report.refused:
        assert len(decision.reason.split()) >= 3, decision
        assert decision.reason == decision.reason.strip().rstrip(".")
    assert any(reason in d.reason for d in report.refused)


def test_strict_refuses_with_its_name() -> None:
    """A sum that may not be reassociated says that numerics is strict; integers may be, and rounding maxima too."""
    strict = ag.explain(decay, numerics="strict")(X)
    assert strict.fired == ()
    assert "it would sum in another order, and numerics is strict" in {d.reason for d in strict.refused}

    def exact(x: Any) -> Any:
        ys, counts = lax.scan(lambda c, _: (0.9 * c, (c, (c > 0).astype(jnp.int32))), x, None, length=64)[1]
        return ys.max(0), counts.sum(0)

    assert len(ag.explain(exact, numerics="strict")(X).fired) == 2


def test_effects_are_a_reason() -> None:
    """A loop that prints says so."""

    def f(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            jax.debug.print("{}", c[0])
            return 0.9 * c, c

        return lax.scan(body, x, None, length=64)[1].sum(0)

    assert "its steps have effects" in {d.reason for d in ag.explain(f)(X).refused}


def test_explain_runs_nothing() -> None:
    """`f` is traced, not run: a callback is not called, and abstract values are enough."""
    calls: list[int] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda: calls.append(1))
        return decay(x)

    assert ag.explain(f)(jax.ShapeDtypeStruct((4096,), np.float32)).fired
    assert calls == []


def test_static_arguments_reach_jit() -> None:
    """Options of `jit` are given on: a static length, by name and by number; another one is another report."""
    for options in ({"static_argnums": 1}, {"static_argnames": "n"}):
        assert "of 32 steps" in ag.explain(decay, **options)(X, 32).fired[0].reason
        assert "of 16 steps" in ag.explain(decay, **options)(X, 16).fired[0].reason
        np.testing.assert_allclose(ag.verify(decay, **options)(X, 32), jax.jit(decay, **options)(X, 32), rtol=1e-5)
    assert "of 32 steps" in ag.explain(decay, static_argnames="n")(X, n=32).fired[0].reason


def test_words_are_checked() -> None:
    """Another word for `numerics` is a usage error that names the door, before anything runs; so are no passes."""
    for door in (ag.optimize, ag.explain, ag.verify):
        with pytest.raises(ag.UsageError) as caught:
            door(decay, numerics="loose")
        assert f"argument `numerics` of `{door.__name__}`" in str(caught.value)
        with pytest.raises(TypeError, match="callable"):
            door(3)  # type: ignore[arg-type]
    for passes in (["loop-fusion"], Wrong(0), [Wrong]):
        with pytest.raises(ag.UsageError, match="`passes` of `optimize`"):
            ag.optimize(decay, passes=passes)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A pass that replaces a result by zero, or by half a unit less."""

    which: int
    by: float = 0.0
    exactness: Exactness = Exactness.BITWISE
    name: str = "wrong"

    def __call__(self, program: ClosedJaxpr, context: Any) -> tuple[ClosedJaxpr, list[Decision]]:
        outs = list(program.jaxpr.outvars)
        outs[self.which] = Literal(np.float32(self.by), outs[self.which].aval)
        jaxpr = with_equations(program.jaxpr, program.jaxpr.eqns, outs)
        decision = Decision("wrong", "is wrong", "", True, "a test wants it", exactness=self.exactness)
        return ClosedJaxpr(jaxpr, program.consts), [decision]


def tree(x: Any) -> Any:
    """A result with paths."""
    return {"loss": x.sum(), "parts": [x.max(), (x.min(), None)]}


@pytest.mark.parametrize(("which", "path"), [(0, "['loss']"), (1, "['parts'][0]"), (2, "['parts'][1][0]")])
@pytest.mark.parametrize("exactness", [Exactness.BITWISE, Exactness.REASSOCIATES, Exactness.FINITE])
def test_verify_names_the_result_that_differs(
    monkeypatch: pytest.MonkeyPatch, which: int, path: str, exactness: Exactness
) -> None:
    """With a wrong pass put in, the error has the path, both values and the size, whatever the pass promised."""
    x = np.array([1, 2, 4], np.float32)
    assert float(ag.verify(lambda x: tree(x))(x)["loss"]) == 7
    monkeypatch.setattr(OPTIMIZE, "DEFAULT_PASSES", (Wrong(which, exactness=exactness),))
    with pytest.raises(ag.Disagreement) as caught:
        ag.verify(lambda x: tree(x))(x)
    error = caught.value
    assert error.path == f"result{path}"
    assert (error.got, error.wanted) == ("0.0", ["7.0", "4.0", "1.0"][which])
    assert error.function == "<lambda>"


def test_what_is_optimised_already_is_verified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The natural form of `jax.jit(ag.optimize(f))` is `f`: else a wrong pass would be compared with itself."""
    x = np.array([1, 2, 4], np.float32)
    monkeypatch.setattr(OPTIMIZE, "DEFAULT_PASSES", (Wrong(0),))
    fast = jax.jit(ag.optimize(lambda x: tree(x)))
    assert float(fast(x)["loss"]) == 0
    with pytest.raises(ag.Disagreement):
        ag.verify(fast)(x)


def test_verify_allows_what_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result one unit in the last place off passes; one of 100 units does not."""
    x = np.array([1, 2, 4], np.float32)
    for by, fails in ((np.nextafter(np.float32(7), np.float32(8)), False), (7 + 100 * 4.8e-7, True)):
        monkeypatch.setattr(OPTIMIZE, "DEFAULT_PASSES", (Wrong(0, float(by), Exactness.REASSOCIATES),))
        if fails:
            with pytest.raises(ag.Disagreement):
                ag.verify(lambda x: tree(x))(x)
        else:
            ag.verify(lambda x: tree(x))(x)


def test_verify_of_other_results() -> None:
    """Keys, integers, None, no arrays at all, nan and empty arrays are verified too."""

    def f(key: Any, n: Any, x: Any) -> Any:
        return jax.random.fold_in(key, 1), n * 2, None, x / 0, x[:0], decay(X)

    out = ag.verify(f)(jax.random.key(0), np.int32(4), np.zeros(3, np.float32))
    assert out[2] is None
    assert ag.verify(lambda: None)() is None


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint8, jnp.bool_, jnp.complex64])
@pytest.mark.parametrize("length", [0, 1, 2, 64])
def test_every_type_and_length_is_verified(dtype: Any, length: int) -> None:
    """Sums over the outputs of loops of no, one, two and many steps agree in every type, also without elements."""

    def f(x: Any) -> Any:
        step = (lambda c: ~c) if dtype == jnp.bool_ else lambda c: c + c
        ys = lax.scan(lambda c, _: (step(c), c), x, None, length=length)[1]
        return ys.sum(0), (ys.any((0, 1)) if dtype == jnp.bool_ else ys.mean(1))

    x = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, (8, 512)) * (0 if length > 2 else 1) + 1, dtype)
    for one in (x, x[:0]):

        def sums(x):
            return jax.tree.leaves(f(x))[0]

        ag.verify(sums)(one)
        if one.size:
            ag.verify(f)(one)


def test_x64_is_verified() -> None:
    """float64 programs keep their types and agree to float64's precision."""
    with jax.enable_x64(True):
        out = ag.verify(decay)(jnp.asarray(X, jnp.float64))
        assert out.dtype == np.float64
        np.testing.assert_allclose(out, jax.jit(decay)(X.astype(np.float64)), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("door", [ag.explain, ag.verify])
def test_arguments_beside_the_function_say_where_they_belong(door: Callable[..., Any]) -> None:
    """What people write who do not read the page first."""
    with pytest.raises(ag.UsageError, match=rf"ag\.{door.__name__}\(decay\)\(\.\.\.\)"):
        door(decay, X)
