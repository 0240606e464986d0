"""Products of wide with narrow operands are turned where that is faster, and nowhere else."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.cost.machine import of_processor, table
from aerogel.compiler.kept import Kept
from aerogel.compiler.pipeline import Context
from aerogel.compiler.rules import turned_products
from rules.rules_under_test import normal, refusals, report_of

RULE = ag.rules.turned_product
X, Y = normal(0, 300, 60), normal(1, 300, 10)
XT, YT = X.T.copy(), Y.T.copy()


def rows(x: Any, y: Any, **more: Any) -> Any:
    """`x.T @ y`, as the passes before the rule leave it."""
    return lax.dot_general(x, y, (((0,), (0,)), ((), ())), **more)


def step(w: Any, xy: Any) -> Any:
    """A step of gradient descent."""
    x, y = xy
    return w - 0.1 * rows(x, x @ w - y), None


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows contracted": (rows, (X, Y)),
    "the narrow one as it is": (lambda x, y: lax.dot_general(x, y, (((0,), (1,)), ((), ()))), (X, YT)),
    "the other way": (lambda x, y: lax.dot_general(y, x, (((0,), (0,)), ((), ()))).T, (X, Y)),
    "a wide right one": (
        lambda x, y: lax.dot_general(y, x, (((0,), (1,)), ((), ()))),
        (normal(0, 200, 400), normal(1, 400, 16)),
    ),
    "a wide right one with long rows, in a loop": (
        lambda w, x: lax.scan(
            lambda c, x: (lax.dot_general(x, w, (((1,), (1,)), ((), ()))), c), jnp.zeros((4, 200), x.dtype), x
        )[1],
        (normal(0, 200, 600), normal(1, 3, 4, 600)),
    ),
    "two contracted axes": (
        lambda x, y: jnp.einsum("abk,abn->kn", x, y),
        (normal(0, 20, 15, 60), normal(1, 20, 15, 10)),
    ),
    "several columns": (lambda x, y: jnp.einsum("abk,anm->bknm", x, y), (normal(0, 300, 6, 10), normal(1, 300, 2, 5))),
    "a batch": (jax.vmap(rows), (normal(0, 8, 64, 30), normal(1, 8, 64, 4))),
    "a batch, the other way": (
        jax.vmap(lambda x, y: rows(y, x).T),
        (normal(0, 8, 64, 30), normal(1, 8, 64, 4)),
    ),
    "a batch behind": (
        lambda p, g: lax.dot_general(p, g, (((2,), (1,)), ((0, 1), (0, 2)))),
        (normal(0, 2, 3, 64, 64), normal(1, 2, 64, 3, 8)),
    ),
    "in a loop": (
        lambda w, x, y: lax.scan(step, w, (x, y))[0],
        (normal(2, 60, 10), normal(0, 4, 300, 60), normal(1, 4, 300, 10)),
    ),
    "a copy of the narrow one": (lambda w, x: rows(w, x), (normal(0, 40, 20), normal(1, 40, 600))),
    "a copy in a batch": (jax.vmap(rows), (normal(0, 3, 40, 20), normal(1, 3, 40, 600))),
    "a copy for two axes": (
        lambda w, x: lax.dot_general(w, x, (((1, 0), (1, 0)), ((), ()))),
        (normal(0, 8, 5, 20), normal(1, 8, 5, 600)),
    ),
    "exchanged and copied": (lambda x, w: rows(x, w), (normal(1, 40, 600), normal(0, 40, 5))),
    "precision of each": (lambda x, y: rows(x, y, precision=(lax.Precision.HIGHEST, lax.Precision.DEFAULT)), (X, Y)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str, dtype: str) -> None:
    """Each spelling is found, and its results stay what they were."""
    f, args = CASES[name]
    with jax.enable_x64(dtype == "float64"):
        args = tuple(x.astype(dtype) for x in args)
        assert [d.rule for d in report_of(f, [RULE], *args).fired] == [RULE.name]


def test_it_fires_in_gradients() -> None:
    """The gradient of the weights of a narrow layer is such a product; derivatives of what is turned are right."""
    loss = lambda w, x, y: jnp.sum((x @ w - y) ** 2)  # noqa: E731
    args = normal(2, 60, 10), X, Y
    assert len(report_of(jax.grad(loss), [RULE], *args).fired) == 1
    outer = ag.optimize(lambda w, x: jnp.sum(jnp.tanh(rows(x, w)) ** 3), rules=[RULE], passes=())
    plain = lambda w, x: jnp.sum(jnp.tanh(rows(x, w)) ** 3)  # noqa: E731
    for of in (jax.grad, jax.hessian, lambda f: jax.vmap(f, (0, None))):
        w, x = (Y, X) if of is not jax.hessian else (normal(1, 64, 3), normal(0, 64, 200) / 8)
        w = jnp.stack([w, 2 * w]) if of not in (jax.grad, jax.hessian) else w
        got, want = of(outer)(w, x), of(plain)(w, x)
        assert jnp.allclose(got, want, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("f", "shapes", "reason"),
    [
        (rows, ((300, 60), (300, 1)), "the narrow operand has 1 columns"),
        (rows, ((300, 200), (300, 65)), "the narrow operand has 65 columns"),
        (
            rows,
            ((20, 60), (20, 10)),
            "20 x 60 and 20 x 10 are too few numbers, or too near to a square",
        ),
        (
            rows,
            ((100, 60), (100, 60)),
            "100 x 60 and 100 x 60 are too few numbers, or too near to a square",
        ),
        (lambda x, y: x @ y, ((60, 300), (300, 10)), "the wide operand is read along its rows"),
        (
            lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))),
            ((16, 400), (120, 400)),
            "400 x 120 are too few numbers, where the terms are the last axis",
        ),
        (
            lambda w, x: lax.scan(
                lambda c, x: (lax.dot_general(x, w, (((1,), (1,)), ((), ()))), None), jnp.zeros((4, 200)), x
            )[0],
            ((200, 500), (3, 4, 500)),
            "500 terms, the last axis, are too few in a loop",
        ),
        (rows, ((200, 900), (200, 40)), "200 x 900 and 200 x 40 are too few numbers, or too near to a square"),
        (rows, ((40, 65), (40, 600)), "the wide operand is read along its rows"),
        (rows, ((65, 20), (65, 600)), "the wide operand is read along its rows"),
        (rows, ((40, 20), (40, 500)), "the wide operand is read along its rows"),
        (lambda x, y: y.T @ x, ((300, 60), (300, 10)), "the wide operand is read along its rows"),
        (
            lambda x, y: jnp.einsum("kbn,bkm->bnm", x, y),
            ((300, 8, 60), (8, 300, 10)),
            "XLA copies the wide operand",
        ),
        (
            lambda x, y: lax.dot_general(x, y, (((0,), (1,)), ((), ()))),
            ((4096, 300), (10, 4096)),
            "the wide operand is large, and the narrow one is read along its rows",
        ),
        (
            rows,
            ((0, 60), (0, 10)),
            "the narrow operand has 0 columns",
        ),
    ],
)
def test_what_would_lose_stays(f: Callable[..., Any], shapes: Any, reason: str) -> None:
    """Where XLA is as fast, the rule says so."""
    assert refusals(f, RULE, *(normal(k, *shape) for k, shape in enumerate(shapes))) == [reason]


@pytest.mark.parametrize(
    ("narrow", "terms", "intel", "others"),
    [(32, 128, True, False), (16, 64, True, False), (32, 256, True, True), (50, 400, False, True), (8, 64, True, True)],
)
def test_borders_are_the_machine_s(narrow: int, terms: int, intel: bool, others: bool, tmp_path: Path) -> None:
    """`x @ w.T` of 50 rows, turned, takes 1.3 of the time on an Intel, of 32 rows of 128 terms 0.85 to 0.94."""
    described = tmp_path / "cpuinfo"
    for vendor, wanted in (("GenuineIntel", intel), ("AuthenticAMD", others)):
        described.write_text(f"processor : 0\nvendor_id\t: {vendor}\n")
        here = replace(table("cpu"), **of_processor(described))
        sides = turned_products._Sides(1, terms, (narrow, 2000), ("last", "last"), False, here)
        assert (sides.reason() is None) == wanted, sides.reason()
    assert not of_processor(tmp_path / "none")


FLOAT64 = {
    "two matrices": (rows, (256, 128), (256, 70)),
    "the left one is less": (rows, (128, 40), (128, 900)),
    "read transposed": (lambda x, y: jnp.sin(rows(x, y).T), (256, 128), (256, 70)),
    "a square, in a loop": (
        lambda x, y: lax.scan(lambda c, _: (jnp.tanh(rows(x, c)), None), y, length=3)[0],
        (128, 128),
        (128, 100),
    ),
    "two contracted axes": (lambda x, y: jnp.einsum("abk,abn->kn", x, y), (16, 16, 80), (16, 16, 90)),
}


@pytest.mark.parametrize("name", FLOAT64)
def test_float64_is_copied_on_an_intel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.4 to 0.8 of the time there: XLA has a library for the others only."""
    f, *shapes = FLOAT64[name]
    for turns in (True, False):
        here = replace(table("cpu"), turns_float64=turns)
        monkeypatch.setattr(Context, "machine", property(lambda self, here=here: here))
        with jax.enable_x64(True):
            args = [normal(k, *shape).astype("float64") / 8 for k, shape in enumerate(shapes)]
            assert (RULE.name in {d.rule for d in report_of(f, [RULE], *args).fired}) == turns
            fast = ag.optimize(f, rules=[RULE], passes=())
            total = lambda g, *args: jnp.sum(jnp.sin(g(*args)))  # noqa: E731
            for g, h in ((f, fast), *((jax.grad(functools.partial(total, k), (0, 1)) for k in (f, fast)),)):
                for got, want in zip(jax.tree.leaves(h(*args)), jax.tree.leaves(g(*args)), strict=True):
                    assert jnp.allclose(got, want, 1e-12, 1e-12)


@pytest.mark.parametrize(
    ("f", "shapes", "dtype"),
    [
        (rows, ((256, 128), (256, 70)), "float32"),
        (rows, ((40, 70), (40, 70)), "float64"),
        (lambda x, y: x @ y, ((128, 256), (256, 70)), "float64"),
        (lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))), ((128, 256), (70, 256)), "float64"),
        (jax.vmap(rows), ((3, 256, 128), (3, 256, 70)), "float64"),
    ],
    ids=["float32", "few", "by rows", "terms last", "a batch"],
)
def test_near_misses_of_float64_stay(
    f: Callable[..., Any], shapes: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has a library, and what is small."""
    here = replace(table("cpu"), turns_float64=True)
    monkeypatch.setattr(Context, "machine", property(lambda self: here))
    with jax.enable_x64(True):
        args = [normal(k, *shape).astype(dtype) for k, shape in enumerate(shapes)]
        assert not report_of(f, [RULE], *args).fired


def test_a_bilinear_layer_reads_its_weights_along_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.45 of plain JAX's time on an Intel; `contraction` writes it so, this rule where that does not."""
    intel = replace(table("cpu"), terms_per_row=4.0, even_rows=16)
    monkeypatch.setattr(Context, "machine", property(lambda self: intel))
    f = lambda x, w, y: jnp.einsum("bi,oij,bj->bo", x, w, y)  # noqa: E731
    args = normal(0, 32, 64), normal(1, 32, 64, 128), normal(2, 32, 128)
    for rules in (ag.rules.default, [RULE]):
        program = jax.make_jaxpr(ag.optimize(f, rules=rules))(*args).jaxpr
        first = next(eqn for eqn in program.eqns if eqn.primitive.name == "dot_general")
        assert first.invars[0] is program.invars[1]
        assert first.params["dimension_numbers"][0] == ((2,), (1,))
    assert jnp.allclose(ag.optimize(f)(*args), f(*args), 1e-4, 1e-3)


def test_other_types_stay() -> None:
    """Products of integers and complex numbers are made by other loops."""
    for dtype in ("int32", "complex64"):
        x, y = X.astype(dtype), Y.astype(dtype)
        assert refusals(rows, RULE, x, y) == [f"{dtype} numbers"]


def test_an_algorithm_stays() -> None:
    """It takes each operand in another way; XLA's CPU backend has none such, so nothing is computed here."""
    f32, bf16 = jnp.dtype("float32"), jnp.dtype("bfloat16")
    uneven = lax.DotAlgorithm(bf16, f32, f32, 1, 1, 1, False)
    made = ag.explain(functools.partial(rows, precision=uneven))(X, Y)
    reasons = [d.reason for d in made.refused if d.rule == RULE.name]
    assert reasons == ["an algorithm is asked for that takes each operand in a way of its own"]


def test_xla_does_not_fold_it_back() -> None:
    """Another version of XLA that folded the transpose through the barrier would make the rule do nothing."""
    text = jax.jit(ag.optimize(rows, rules=[RULE], passes=())).lower(X, Y).compile().as_text()
    assert text is not None
    assert "f32[10,60]{1,0} dot(" in text, text


def loss(w: Any, x: Any, y: Any) -> Any:
    """Of a layer."""
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Of several heads, summed."""
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
    return jnp.sum(jnp.einsum("bhts,bshd->bthd", weights, v) ** 2)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (lambda x, y: x.T @ y, (normal(0, 3000, 60), normal(1, 3000, 10))),  # of 300 rows it takes as long either way
        (lambda x, y: (y.T @ x).T, (X, Y)),
        (jax.grad(loss), (normal(2, 60, 10), X, Y)),
        (jax.grad(attention, (0, 1, 2)), tuple(normal(k, 2, 128, 3, 16) for k in range(3))),
    ],
)
def test_it_fires_after_the_passes(f: Callable[..., Any], args: Any) -> None:
    """In programs as they are written."""
    assert RULE.name in {d.rule for d in ag.explain(f)(*args).fired}


def test_it_keeps_its_claim() -> None:
    """Values are as exact as a sum in another order is."""
    ag.check_rule(RULE, fires_on=[(rows, (X, Y))], under=[jax.vmap, jax.jit])


def test_small_matrices_of_a_batch_stay_whatever_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA aborted the process for these, where prices let them be turned: there is no error to catch."""
    for name in ("WIDER", "LONGER", "LONGER_FOR_MANY", "FEWEST"):
        monkeypatch.setattr(turned_products, name, 0)

    def both(x: Any, y: Any, z: Any) -> Any:
        product = lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,))))
        return jnp.transpose(product, (0, 2, 1)), lax.dot_general(x, z, (((2,), (2,)), ((0,), (0,))))

    args = tuple(normal(k, *shape) for k, shape in enumerate(((3, 4, 2), (3, 4, 3), (3, 3, 2))))
    assert "XLA may abort: its matrices are too small to be kept from their transposes" in refusals(both, RULE, *args)
    for got, want in zip(jax.jit(ag.optimize(both, rules=[RULE]))(*args), both(*args), strict=True):
        assert jnp.allclose(got, want, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("terms", "wide", "narrow", "cores", "left"),
    [
        (128, 784, 32, 2, True),
        (128, 784, 32, 1, False),
        (128, 784, 24, 2, False),
        (128, 256, 32, 2, False),
        (512, 1024, 32, 2, False),
    ],
)
def test_what_several_cores_share_is_left(
    terms: int, wide: int, narrow: int, cores: int, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many multiplications with more than 24 columns: another thread takes as long to wake as turning saves."""
    monkeypatch.setattr(turned_products._jax, "usable_cores", lambda: cores)
    monkeypatch.setattr(RULE, "kept", Kept(RULE.kept.most))  # what is remembered of sites
    (decision,) = report_of(rows, [RULE], normal(0, terms, wide), normal(1, terms, narrow)).decisions
    assert decision.fired == (not left)
    assert (decision.reason == "several cores would share it, and waking them takes as long as it saves") == left
