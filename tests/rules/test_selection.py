"""A few of a sorted array without the sort: the bits that the sort gives, nan and -0 included."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules import selection
from rules.rules_under_test import normal
from rules.specials import bits_with, integers, reasons, rules_fired, specials

FIRST, LAST, PLACES, LAST_PLACES, DOWN, ONE, ALONE = RULES = [
    ag.rules.first_of_sorted,
    ag.rules.last_of_sorted,
    ag.rules.first_of_argsorted,
    ag.rules.last_of_argsorted,
    ag.rules.first_of_argsorted_down,
    ag.rules.top_one,
    ag.rules.one_of_sorted,
]
TIES = jnp.round(normal(1, 6, 200) * 2) + 0.0
ODD = specials(2, 6, 200)

SPELLINGS: dict[str, tuple[Any, Any, Any]] = {
    "smallest": (FIRST, lambda x: jnp.sort(x)[0], normal(0, 200)),
    "smallest of columns": (FIRST, lambda x: jnp.sort(x, 0)[:3], TIES.T),
    "smallest under vmap": (FIRST, jax.vmap(lambda x: jnp.sort(x)[0]), ODD),
    "largest": (LAST, lambda x: jnp.sort(x)[-1], normal(0, 200)),
    "largest five": (LAST, lambda x: jnp.sort(x, -1)[:, -5:], TIES),
    "largest in a scan": (LAST, lambda x: lax.scan(lambda c, row: (c, jnp.sort(row)[-2:]), 0, x), ODD),
    "the third": (ALONE, lambda x: jnp.sort(x)[2], normal(0, 200)),
    "the tenth from the end": (ALONE, lambda x: jnp.where(x >= jnp.sort(x)[-10], x, 0), TIES[0]),
    "the second of columns": (ALONE, lambda x: jnp.sort(x, 0)[1], TIES.T),
    "the second of rows under vmap": (ALONE, jax.vmap(lambda x: -jnp.sort(-x)[1]), ODD),
    "places": (PLACES, lambda x: jnp.argsort(x)[:4], TIES),
    "places of rows": (PLACES, lambda x: jnp.argsort(x, -1)[:, :4], TIES),
    "places of the largest": (PLACES, lambda x: jnp.argsort(-x, 1)[:, :4], ODD),
    "places under vmap": (PLACES, jax.vmap(lambda x: jnp.argsort(-x)[:4]), ODD),
    "places of ties under vmap": (PLACES, jax.vmap(lambda x: jnp.argsort(x)[:4], in_axes=1, out_axes=1), TIES.T),
    "last places": (LAST_PLACES, lambda x: jnp.argsort(x)[-4:], TIES[0]),
    "last places backwards": (LAST_PLACES, lambda x: jnp.argsort(x)[::-1][:4], TIES[1]),
    "last places of columns": (LAST_PLACES, lambda x: jnp.flip(jnp.argsort(x, 0), 0)[:3], TIES.T),
    "last place under vmap": (LAST_PLACES, jax.vmap(lambda x: jnp.argsort(x)[-1]), ODD),
    "rows at the last places": (LAST_PLACES, lambda x: x[jnp.argsort(x[:, 1])[-5:]], TIES.T),
    "places downwards": (DOWN, lambda x: jnp.argsort(x, descending=True)[:4], TIES[2]),
    "places of rows downwards": (DOWN, lambda x: jnp.argsort(x, 1, descending=True)[:, :4], TIES),
    "places downwards under vmap": (DOWN, jax.vmap(lambda x: jnp.argsort(x, descending=True)[:2]), ODD),
    "largest of zeros of both signs": (LAST, lambda x: jnp.sort(x)[-5:], jnp.zeros(200).at[::3].set(-0.0)),
    "largest in front of zeros": (LAST, lambda x: jnp.sort(x)[-5:], jnp.zeros(200).at[::3].set(-0.0).at[7:12].set(1)),
    "places of both infinities": (
        PLACES,
        lambda x: jnp.argsort(x)[:4],
        normal(0, 200).at[3].set(jnp.inf).at[5].set(-jnp.inf),
    ),
    "smallest with a negative nan": (FIRST, lambda x: jnp.sort(x)[:4], normal(0, 200).at[3].set(-jnp.nan)),
    "top one": (ONE, lambda x: lax.top_k(x, 1), normal(3, 50, 100)),
    "top one of few kinds": (ONE, lambda x: lax.top_k(x, 1), specials(4, 50, 100)),
    "top one of zeros and less": (ONE, lambda x: lax.top_k(x, 1), jnp.minimum(normal(5, 50, 100), 0.0)),
    "top one under vmap": (ONE, jax.vmap(lambda x: lax.top_k(x, 1)[1]), jnp.zeros((5, 1000)).at[:, 9::2].set(-0.0)),
}


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the largest element as well, whose rule is for large arrays."""
    monkeypatch.setattr(selection, "FEWEST_OF_ONE", selection.FEWEST)


@pytest.mark.parametrize("name", SPELLINGS)
def test_same_bits(name: str) -> None:
    """Fires, and changes no bit."""
    rule, f, x = SPELLINGS[name]
    if name == "places":
        x = x[0]
    assert rules_fired(bits_with(f, [rule], x)) == [rule.name]


NEAR_MISSES: dict[str, tuple[Any, Any, Any, str]] = {
    "the second": (FIRST, lambda x: jnp.sort(x)[1], normal(0, 200), "`slice`"),
    "a few in all": (FIRST, lambda x: jnp.sort(x)[0], normal(0, 100), "fewer than 160 elements"),
    "many": (FIRST, lambda x: jnp.sort(x)[:14], normal(0, 200), "14 of 200 elements, more than one in 16"),
    "the middle one": (ALONE, lambda x: jnp.sort(x)[100], normal(0, 200), "100 of 200 elements"),
    "two from the middle": (ALONE, lambda x: jnp.sort(x)[3:5], normal(0, 200), ""),
    "integers": (LAST, lambda x: jnp.sort(x)[-1], integers(0, 200), "from float32 alone"),
    "not the end": (LAST, lambda x: jnp.sort(x)[-3:-1], normal(0, 200), "`slice`"),
    "the sort is needed": (LAST, lambda x: (jnp.sort(x)[-1], jnp.sort(x)), normal(0, 200), "in the middle"),
    "last places": (PLACES, lambda x: jnp.argsort(x)[-2:], normal(0, 200), "`slice`"),
    "first places": (LAST_PLACES, lambda x: jnp.argsort(x)[:2], normal(0, 200), "`slice`"),
    "places in the middle": (LAST_PLACES, lambda x: jnp.argsort(x)[-3:-1], normal(0, 200), "`slice`"),
    "any order of ties": (LAST_PLACES, lambda x: jnp.argsort(x, stable=False)[-2:], normal(0, 200), "is_stable"),
    "last downwards": (DOWN, lambda x: jnp.argsort(x, descending=True)[-2:], normal(0, 200), "expected"),
    "many downwards": (DOWN, lambda x: jnp.argsort(x, descending=True)[:14], normal(0, 200), "more than one in 16"),
    "values and places": (PLACES, lambda x: lax.sort((x, x), num_keys=1)[1][:2], normal(0, 200), "expected"),
    "top two": (ONE, lambda x: lax.top_k(x, 2), normal(0, 50, 100), "2 elements, not one"),
    "top one of few": (ONE, lambda x: lax.top_k(x, 1), normal(0, 50), "50 elements"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """Leaves alone what is another form, or too much for a selection, and says why."""
    rule, f, x, reason = NEAR_MISSES[name]
    report = bits_with(f, [rule], x)
    assert not report.fired
    assert any(reason in one for one in reasons(report))


@pytest.mark.parametrize("name", [name for name in SPELLINGS if "under" in name])
def test_under_vmap_all_examples_take_one_branch(name: str) -> None:
    """Not both sides for each: the sort stands in a branch."""
    rule, f, x = SPELLINGS[name]
    optimised = ag.optimize(f, rules=[rule], passes=())
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(optimised)(x).jaxpr.eqns]
    assert "cond" in names
    assert not {"sort", "psum"} & {*names}


@pytest.mark.parametrize("name", ["largest five", "places of rows", "last places", "the second of columns"])
def test_in_front_of_the_branch_numbers_are_selected_and_summed_up_alone(name: str) -> None:
    """A test of each number for nan and -0 stands in the branch for sums that are nan and zeros that are selected."""
    rule, f, x = SPELLINGS[name]
    jaxpr = jax.make_jaxpr(ag.optimize(f, rules=[rule], passes=()))(x).jaxpr
    whole = [eqn.primitive.name for eqn in jaxpr.eqns if any(v.aval.size == x.size for v in eqn.invars)]
    assert {"top_k", "reduce_sum", "cond"} <= {*whole} <= {"top_k", "reduce_sum", "cond", "neg", "rev", "transpose"}


def test_places_are_of_the_type_that_argsort_has() -> None:
    """Of 64 bits where JAX has them."""
    with jax.enable_x64(True):
        assert rules_fired(bits_with(lambda x: jnp.argsort(x)[:2], RULES, normal(0, 200))) == ["first-of-argsorted"]
        assert rules_fired(bits_with(lambda x: jnp.argsort(x)[-2:], RULES, normal(0, 200))) == ["last-of-argsorted"]


def test_selection_goes_before_the_sort() -> None:
    """With all rules, a selection is no longer a site for the rule about sorts."""
    report = bits_with(lambda x: jnp.sort(x)[0], [*RULES, ag.rules.sort_places], normal(0, 200))
    assert rules_fired(report) == ["first-of-sorted"]


def test_claims() -> None:
    """`check_rule`: nan, -0 and the largest numbers, gradients and `vmap`."""
    spellings = {FIRST: "smallest of columns", PLACES: "places of rows", DOWN: "places of rows downwards"}
    for rule, spelling in [*spellings.items(), (LAST_PLACES, "last places of columns")]:
        _, f, _ = SPELLINGS[spelling]
        misses = [(jnp.sort, (normal(0, 9),)), (lambda x: lax.top_k(x, 1), (normal(0, 99),))]
        ag.check_rule(rule, fires_on=[(f, (normal(0, 70, 70),))], leaves_alone=misses, under=[jax.vmap])


def test_the_largest_of_a_large_array_is_found_by_default() -> None:
    """Large zeros are found by blocks too: no second branch with the whole selection is taken for them."""
    x = jax.nn.relu(normal(6, 50, 100))
    assert "top-one-by-blocks" in {d.rule for d in ag.explain(lambda x: lax.top_k(x, 1))(x).fired}
    assert not selection._is_unusual(x, jnp.max(x, 1, keepdims=True), 1)
    nothing = x * 0
    assert not selection._is_unusual(nothing, jnp.max(nothing, 1, keepdims=True), 1)
    assert selection._is_unusual(-nothing, jnp.max(-nothing, 1, keepdims=True), 1)
