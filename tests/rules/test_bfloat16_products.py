"""Products of bfloat16 are made of the short numbers where the processor can, and run in every form."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.cost.machine import of_processor, table
from aerogel.compiler.kept import Kept
from aerogel.compiler.pipeline import Context
from aerogel.compiler.rules import bfloat16_products
from rules.rules_under_test import normal, refusals, report_of

RULE = ag.rules.bfloat16_product


@pytest.fixture(autouse=True)
def _with_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor: the rule is right everywhere, and pays where the instructions are."""
    monkeypatch.setattr(bfloat16_products, "multiplies_bfloat16", lambda _: True)
    monkeypatch.setattr(RULE, "kept", Kept(RULE.kept.most))


def short(seed: int, *shape: int) -> Any:
    """Normal numbers, rounded."""
    return normal(seed, *shape).astype(jnp.bfloat16)


def product(*dimension_numbers: Any, **more: Any) -> Callable[..., Any]:
    """A `dot_general`."""
    return lambda a, b: lax.dot_general(a, b, dimension_numbers, **more)


def long(*dimension_numbers: Any) -> Callable[..., Any]:
    """One whose result is float32."""
    return product(*dimension_numbers, preferred_element_type=jnp.float32)


NO_BATCH = ((), ())
NARROW = "the result is narrow, and XLA computes an operand of so many terms in float32"
A, B = short(0, 160, 128), short(1, 128, 144)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul": (lambda a, b: a @ b, (A, B)),
    "terms last in both": (product(((1,), (1,)), NO_BATCH), (A, B.T)),
    "terms first in both": (product(((0,), (0,)), NO_BATCH), (A.T, B)),
    "terms first in both, fewer columns": (product(((0,), (0,)), NO_BATCH), (A.T, B[:, :5])),
    "the other way round": (product(((0,), (1,)), NO_BATCH), (A.T, B.T)),
    "many terms": (product(((0,), (0,)), NO_BATCH), (short(0, 5000, 64), short(1, 5000, 70))),
    "many terms as they are": (product(((0,), (0,)), NO_BATCH), (short(0, 5000, 30), short(1, 5000, 30))),
    "few columns, fewer terms": (product(((0,), (0,)), NO_BATCH), (short(0, 3000, 30), short(1, 3000, 30))),
    "more rows than one axis": (lambda x, w: jnp.einsum("bti,io->bto", x, w), (short(0, 3, 50, 64), short(1, 64, 40))),
    "a batch": (jax.vmap(lambda a, b: a @ b), (short(0, 3, 64, 64), short(1, 3, 64, 32))),
    "a batch, terms first": (
        jax.vmap(lambda a, b: a.T @ b),
        (short(0, 3, 128, 128), short(1, 3, 128, 130)),
    ),
    "heads behind": (
        lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k),
        (short(0, 2, 40, 3, 32), short(1, 2, 50, 3, 32)),
    ),
    "two contracted axes": (
        lambda x, w: jnp.einsum("bthk,hkd->btd", x, w), (short(0, 2, 40, 4, 16), short(1, 4, 16, 90))),
    "contracted in other orders": (
        lambda x, w: jnp.einsum("bhk,khd->bd", x, w), (short(0, 80, 4, 16), short(1, 16, 4, 90))),
    "in a loop": (
        lambda w, xs: lax.scan(lambda h, x: ((h := jnp.tanh(x @ w + h)), h), jnp.zeros((64, 64), w.dtype), xs)[1],
        (short(0, 64, 64), short(1, 4, 64, 64)),
    ),
    "rows contracted in float32": (long(((0,), (0,)), NO_BATCH), (A.T, B)),
    "heads in float32": (
        lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32),
        (short(0, 2, 40, 3, 32), short(1, 2, 50, 3, 32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str) -> None:
    """Each spelling is found; its error against float64 is no more than plain JAX's, whose products are rounded too."""
    f, args = CASES[name]
    assert [d.rule for d in report_of(f, [RULE], *args).fired] == [RULE.name]
    got = jax.jit(ag.optimize(f, rules=[RULE], passes=()))(*args)
    exact = np.asarray(f(*(np.asarray(x, np.float32) for x in args)), np.float64)
    assert got.dtype == jax.eval_shape(f, *args).dtype
    unit = 2.0 ** (-7 if name == "in a loop" else -8 if got.dtype == jnp.bfloat16 else -18)
    np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=unit, atol=unit * np.abs(exact).max())


@pytest.mark.parametrize(
    ("f", "shapes", "reason"),
    [
        (lambda a, b: a @ b, ((256, 512), (512,)), "a matrix with a vector, which XLA's own loop takes as long for"),
        (lambda a, b: a @ b, ((32, 64), (64, 64)), "131072 multiplications are too few"),
        (product(((0,), (0,)), NO_BATCH), ((64, 31), (64, 33)), "65472 multiplications are too few"),
        (jax.vmap(lambda a, b: a @ b), ((900, 7, 8), (900, 8, 9)), "453600 multiplications are too few"),
        (lambda a, b: a @ b, ((0, 64), (64, 64)), "0 multiplications are too few"),
        (lambda a, b: a @ b, ((300, 0), (0, 300)), "0 multiplications are too few"),
        (long(((1,), (0,)), NO_BATCH), ((160, 128), (128, 144)), "XLA makes it of the short numbers"),
        (lambda a, b: a.T @ (b * b), ((10_000, 30), (10_000, 30)), NARROW),
        (lambda a, b: product(((0,), (0,)), NO_BATCH)(a * 2, b), ((10_000, 100), (10_000, 8)), NARROW),
    ],
)
def test_what_would_lose_stays(f: Callable[..., Any], shapes: Any, reason: str) -> None:
    """Where XLA is as fast, the rule says so."""
    assert refusals(f, RULE, *(short(k, *shape) for k, shape in enumerate(shapes))) == [reason]


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        ("float32", "float32", "float32 times float32 in float32"),
        ("float16", "float16", "float16 times float16 in float16"),
        ("int8", "int8", "int8 times int8 in int8"),
    ],
)
def test_other_types_stay(left: str, right: str, reason: str) -> None:
    """The processor has no such instructions for them, or XLA takes those already."""
    assert refusals(lambda a, b: a @ b, RULE, A.astype(left), B.astype(right)) == [reason]


def test_operands_of_two_types_stay() -> None:
    """And a result of a third."""
    mixed = product(((1,), (0,)), NO_BATCH, preferred_element_type=jnp.float32)
    assert refusals(mixed, RULE, A, B.astype("float32")) == ["bfloat16 times float32 in float32"]


def test_other_processors_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The rule asks the machine, which asks the processor."""
    monkeypatch.undo()
    for flags, wanted in (("sse2 avx512f avx512_bf16 avx512vl", True), ("sse2 avx512f", False), ("", False)):
        described = tmp_path / "cpuinfo"
        described.write_text(f"processor : 0\nvendor_id\t: AuthenticAMD\nflags\t\t: {flags}\n\nprocessor : 1\n")
        here = replace(table("cpu"), **of_processor(described))
        assert bfloat16_products.multiplies_bfloat16(here) == wanted
        monkeypatch.setattr(Context, "machine", property(lambda self, here=here: here))
        monkeypatch.setattr(RULE, "kept", Kept(RULE.kept.most))
        assert bool(report_of(lambda a, b: a @ b, [RULE], A, B).fired) == wanted


FORMS = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_runs(form: tuple[int, int], turned: bool, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that XLA turns into one that its library does not take, too: some of plain JAX's own do not run."""
    for name in ("FEWEST", "FEWEST_OF_ONE", "FEWEST_TURNED"):
        monkeypatch.setattr(bfloat16_products, name, 1)
    a, b = short(0, 24, 40), short(1, 40, 16)

    def f(a: Any, b: Any, turns: str = "") -> Any:
        a, b = a.T if "a" in turns else a, b.T if "b" in turns else b
        y = lax.dot_general(a, b, (((form[0],), (form[1],)), NO_BATCH), preferred_element_type=kind)
        return jnp.exp(y.T if turned else y)

    for turns in ("", "a", "b", "ab"):
        x = a if (form[0] == 1) != ("a" in turns) else a.T
        y = b if (form[1] == 0) != ("b" in turns) else b.T
        for more in ({"passes": ()}, {}):
            got = jax.jit(ag.optimize(lambda a, b, t=turns: f(a, b, t), rules=[RULE], **more))(x, y)
            whole = np.exp(np.asarray(a, np.float64) @ np.asarray(b, np.float64))
            np.testing.assert_allclose(np.asarray(got, np.float64), whole.T if turned else whole, rtol=0.2)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Of several heads, the weights in float32."""
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) / 8)
    return jnp.einsum("bhts,bshd->bthd", weights.astype(q.dtype), v)


def loss(w: Any, x: Any, y: Any) -> Any:
    """Of a layer."""
    return jnp.mean((jnp.tanh(x @ w) - y).astype(jnp.float32) ** 2)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (jax.grad(loss, (0, 1)), (short(0, 128, 128), short(1, 150, 128), short(2, 150, 128))),
        (attention, (short(0, 2, 64, 4, 32),) * 3),
        (jax.grad(lambda *a: jnp.sum(attention(*a).astype("float32") ** 2), (0, 1, 2)), (short(0, 2, 64, 4, 32),) * 3),
        (jax.vmap(jax.grad(loss), (None, 0, 0)), (short(0, 128, 128), short(1, 3, 150, 128), short(2, 3, 150, 128))),
    ],
)
def test_it_fires_after_the_passes(f: Callable[..., Any], args: Any) -> None:
    """In programs as they are written, their gradients and batches; as near to float32's results as plain JAX's."""
    assert RULE.name in {d.rule for d in ag.explain(f)(*args).fired}
    got, plain = jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args)
    want = jax.jit(f)(*jax.tree.map(lambda x: x.astype(jnp.float32), args))

    def off(tree: Any) -> float:
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(want), strict=True)
        return sum(float(jnp.linalg.norm((x.astype(jnp.float32) - y).ravel())) for x, y in pairs)

    assert off(got) <= 1.1 * off(plain)


def test_derivatives_from_outside() -> None:
    """The rule is for the last program: what is differentiated, mapped or looked through has plain products."""
    inner = ag.optimize(loss, rules=[RULE], passes=())
    args = short(0, 128, 128), short(1, 150, 128), short(2, 150, 128)
    for of in (
        lambda f: jax.grad(f),
        lambda f: jax.vmap(f, (None, 0, 0)),
        lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
    ):
        got, want = of(inner)(*args), of(loss)(*args)
        assert jnp.allclose(got.astype(jnp.float32), want.astype(jnp.float32), 2e-2, 2e-3)


def test_it_keeps_its_claim() -> None:
    """Values are as exact as a sum in another order is."""
    ag.check_rule(RULE, fires_on=[(lambda a, b: a @ b, (A, B))], under=[jax.vmap, jax.jit])
