"""Products summed over several axes name them as they are stored, whatever `einsum` calls them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.program import inner_jaxprs
from rules.rules_under_test import normal, refusals, report_of

RULE = ag.rules.terms_as_stored


def summed(text: str) -> Callable[..., Any]:
    """An `einsum`."""
    return lambda x, y: jnp.einsum(text, x, y)


HEADS = normal(0, 2, 12, 4, 8), normal(1, 4, 8, 20)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "heads are joined": (summed("bthd,hdo->bto"), HEADS),
    "tokens come back from their experts": (summed("nec,ecd->nd"), (normal(0, 30, 4, 9), normal(1, 4, 9, 7))),
    "the axes are first": (summed("tbd,tba->da"), (normal(0, 5, 6, 7), normal(1, 5, 6, 3))),
    "the axes are elsewhere": (summed("hbd,ohd->bo"), (normal(0, 4, 6, 8), normal(1, 9, 4, 8))),
    "a batch": (jax.vmap(summed("thd,hdo->to")), (normal(0, 3, 12, 4, 8), normal(1, 3, 4, 8, 20))),
    "a vector": (summed("hd,hdo->o"), (normal(0, 4, 8), normal(1, 4, 8, 20))),
    "three axes": (summed("nzyx,zyxm->nm"), (normal(0, 6, 2, 3, 4), normal(1, 2, 3, 4, 5))),
    "the smaller one is copied": (summed("nba,abm->nm"), (normal(0, 9, 5, 4), normal(1, 4, 5, 3))),
    "in a loop": (
        lambda x, y: lax.scan(lambda c, z: (c + summed("bthd,hdo->bto")(z, y), None), jnp.zeros((2, 12, 20)), x)[0],
        (normal(0, 3, 2, 12, 4, 8), HEADS[1]),
    ),
    "the gradient": (jax.grad(lambda x, y: jnp.sum(jnp.sin(summed("bthd,hdo->bto")(x, y))), (0, 1)), HEADS),
    "an empty batch": (summed("bthd,hdo->bto"), (normal(0, 0, 12, 4, 8), HEADS[1])),
}


def numbers_of(jaxpr: Any) -> list[Any]:
    """What the products of a program, and of its loops, sum over."""
    inner = [numbers_of(p) for eqn in jaxpr.eqns for p in inner_jaxprs(eqn)]
    own = [eqn.params["dimension_numbers"][0] for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    return own + [one for some in inner for one in some]


@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str) -> None:
    """Once for each such product, whose larger operand then has the axes in its order."""
    f, args = CASES[name]
    assert [d.rule for d in report_of(f, [RULE], *args).fired] == [RULE.name]
    program = jax.make_jaxpr(ag.optimize(f, rules=[RULE], passes=()))(*args)
    assert all(any(list(axes) == sorted(axes) for axes in both) for both in numbers_of(program.jaxpr))


@pytest.mark.parametrize("name", CASES)
def test_results_agree_in_float64(name: str) -> None:
    """Other sums of the same products, under all rules and passes."""
    f, args = CASES[name]
    with jax.enable_x64(True):
        args = [np.asarray(x, np.float64) for x in args]
        f = f if name != "in a loop" else lambda x, y: sum(summed("bthd,hdo->bto")(z, y) for z in x)
        for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(*args)), jax.tree.leaves(f(*args)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


def test_xla_copies_nothing() -> None:
    """As written, it copies both operands (jaxlib 0.10.2)."""
    x, y = normal(0, 4, 64, 4, 16), normal(1, 4, 16, 64)
    f = summed("bthd,hdo->bto")
    plans = [jax.jit(g).lower(x, y).compile().memory_analysis() for g in (f, ag.optimize(f))]
    held = [plan.temp_size_in_bytes for plan in plans if plan is not None]
    assert held[1] <= held[0] - x.nbytes


@pytest.mark.parametrize(
    ("f", "args", "reason"),
    [
        (summed("bthk,hko->bto"), HEADS, "in the order in which the larger operand is stored"),
        (summed("nba,abm->nm"), (normal(0, 2, 5, 4), normal(1, 4, 5, 30)), "in the order in which the larger"),
        (summed("bth,hdo->btdo"), (normal(0, 2, 12, 4), HEADS[1]), "summed over one axis"),
        (summed("bthd,hdo->bto"), (normal(0, 2, 12, 1, 8), normal(1, 1, 8, 20)), "summed over one axis"),
        (summed("hd,hd->"), (normal(0, 4, 8), normal(1, 4, 8)), "it is a sum of products"),
        (summed("bhd,bhd->b"), (normal(0, 3, 4, 8), normal(1, 3, 4, 8)), "it is a sum of products"),
        (summed("bthd,hdo->bto"), tuple(x.astype("bfloat16") for x in HEADS), "copied to be converted"),
    ],
)
def test_what_would_gain_nothing_stays(f: Callable[..., Any], args: Any, reason: str) -> None:
    """Axes that lie in order, one axis, sums of products, numbers that are converted."""
    assert any(reason in one for one in refusals(f, RULE, *args))


def test_strict_numerics_leave_it() -> None:
    """The terms are added up in another order."""
    program = jax.make_jaxpr(ag.optimize(summed("bthd,hdo->bto"), numerics="strict"))(*HEADS)
    assert numbers_of(program.jaxpr) == [((3, 2), (1, 0))]
