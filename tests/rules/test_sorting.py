"""`sort-by-places` gives the bits that JAX's sort gives, and knows where it does not apply."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from rules.rules_under_test import normal
from rules.specials import bits_with, integers, reasons, rules_fired, specials

RULE = ag.rules.sort_places


def in_scan(rows: Any) -> Any:
    """A sort in each step of a loop."""
    return lax.scan(lambda c, row: (c + jnp.sort(row), jnp.argsort(row)), jnp.zeros(rows.shape[1]), rows)


def in_any_order(x: Any) -> Any:
    """A sort that does not say which of two equal numbers comes first: on CPU, JAX does not keep their order."""
    return lax.sort(x, is_stable=False)


SPELLINGS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sort": (jnp.sort, (specials(0, 100),)),
    "argsort of columns": (lambda x: jnp.argsort(x, 0), (specials(1, 40, 6),)),
    "in the middle": (lambda x: jnp.argsort(x, 1, descending=True), (specials(2, 3, 20, 4),)),
    "key and values": (
        lambda x, y, z: lax.sort((x, y, z), num_keys=1),
        (specials(3, 5, 30), *[integers(4, 5, 30)] * 2),
    ),
    "of bfloat16": (lambda x: (jnp.sort(x), jnp.argsort(x)), (specials(5, 64, dtype="bfloat16"),)),
    "of float16": (lambda x: (jnp.sort(x), jnp.argsort(x)), (specials(6, 64, dtype="float16"),)),
    "of int32": (jnp.argsort, (integers(7, 90),)),
    "of uint32": (jnp.argsort, (integers(8, 90, dtype="uint32"),)),
    "of int8": (jnp.argsort, (integers(9, 90, dtype="int8"),)),
    "of bool": (jnp.argsort, (integers(10, 90, dtype="bool"),)),
    "vmap of vmap": (jax.vmap(jax.vmap(jnp.argsort, 1), 2), (specials(11, 8, 3, 4),)),
    "gradient": (jax.grad(lambda x: jnp.sum(jnp.sort(x) ** 2 * jnp.arange(30))), (normal(12, 30),)),
    "scan": (in_scan, (specials(13, 4, 30),)),
    "branch": (lambda x: lax.cond(x[0] > 0, jnp.sort, jnp.negative, x), (normal(14, 30),)),
    "permutation": (lambda key: jax.random.permutation(key, 500), (jax.random.key(0),)),
    "in any order": (in_any_order, (normal(16, 100),)),
    "in any order, with ties": (in_any_order, (specials(17, 100),)),
    "in any order, with zeros of both signs": (in_any_order, (jnp.nan_to_num(specials(17, 100), posinf=-0.0),)),
    "in any order in bfloat16": (jax.vmap(in_any_order), (specials(18, 3, 30, dtype="bfloat16"),)),
    "in any order in float16": (in_any_order, (normal(19, 8, 9).astype("float16"),)),
    "in any order in a scan": (lambda x: lax.map(in_any_order, x), (normal(20, 3, 80),)),
    "median": (jnp.median, (normal(15, 9, 9),)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_same_bits(name: str) -> None:
    """Fires, and changes no bit: nan and zeros of both signs, ties and subnormal numbers come in their old order."""
    f, args = SPELLINGS[name]
    assert set(rules_fired(bits_with(f, [RULE], *args))) == {RULE.name}


MANY = {
    "normal": normal(0, 1 << 18),
    "rows": normal(1, 2, 1 << 17),
    "one kind of nan": normal(2, 1 << 18).at[::7].set(jnp.nan),
    "negative nan": normal(2, 1 << 18).at[::7].set(-jnp.nan),
    "two kinds of nan": normal(3, 1 << 18).at[::7].set(jnp.nan).at[::5].set(-jnp.nan),
    "negative zeros": normal(4, 1 << 18).at[::3].set(-0.0),
    "zeros of both signs": normal(5, 1 << 18).at[::3].set(-0.0).at[1::3].set(0.0),
    "specials": specials(6, 1 << 18),
    "bfloat16": normal(7, 1 << 18).astype("bfloat16"),
    "float16 specials": specials(8, 1 << 18, dtype="float16"),
}


@pytest.mark.parametrize("name", MANY)
def test_many_alone(name: str) -> None:
    """Many numbers alone are sorted by their bits, and no bit is another; nor does it take memory for places."""
    x = MANY[name]
    for f in (jnp.sort, lambda x: lax.sort(x, is_stable=False)):
        assert set(rules_fired(bits_with(f, [RULE], x))) == {RULE.name}
    sort = jax.jit(ag.optimize(jnp.sort, rules=[RULE], passes=()))
    memory = sort.lower(x).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes <= 4 * x.size + 1024


def test_many_alone_differentiated() -> None:
    """What is sorted by its bits has the derivative of a sort, whoever takes it, and is batched."""
    x = normal(9, 1 << 18)
    sort = jax.jit(ag.optimize(jnp.sort, rules=[RULE], passes=()))

    def loss(sort: Any) -> Any:
        return lambda x: (sort(x) * jnp.arange(x.size)).sum()

    assert jnp.array_equal(jax.grad(loss(sort))(x), jax.grad(loss(jnp.sort))(x))
    assert jnp.array_equal(jax.jvp(sort, (x,), (x,))[1], jax.jvp(jnp.sort, (x,), (x,))[1])
    two = jnp.stack([x, -x])
    assert jnp.array_equal(jax.vmap(sort)(two), jnp.sort(two, 1))


def test_64_bits() -> None:
    """With 64-bit types, 32-bit keys are packed as well; 64-bit ones leave no room."""
    with jax.enable_x64(True):
        x = specials(0, 50)
        assert rules_fired(bits_with(jnp.argsort, [RULE], x))
        assert reasons(bits_with(jnp.argsort, [RULE], x.astype("float64"))) == [
            "a key of 64 bits leaves no room for the place"
        ]


NEAR_MISSES: dict[str, tuple[Any, Any, str]] = {
    "integers alone": (jnp.sort, integers(0, 50), "XLA sorts one array of integers fast"),
    "two keys": (lambda x: lax.sort((x, x), num_keys=2), normal(0, 50), "it has 2 keys"),
    "complex": (jnp.sort, normal(0, 50).astype(complex), "complex64 has no order"),
    "not stable": (lambda x: jnp.argsort(x, stable=False), normal(0, 50), "which of two equal keys comes first"),
    "few, not stable": (in_any_order, normal(0, 63), "63 elements in any order among equals, fewer than 64"),
    "short": (jnp.sort, normal(0, 3), "3 elements, fewer than 4"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    """Leaves alone what it could not do, or not faster, and says why."""
    f, x, reason = NEAR_MISSES[name]
    found = reasons(bits_with(f, [RULE], x))
    assert found
    assert all(reason in one for one in found)


def test_claim() -> None:
    """`check_rule`: nan, -0 and limits, gradients and `vmap`."""
    ag.check_rule(
        RULE,
        fires_on=[(jnp.sort, (normal(0, 3, 9),)), (lambda x: jnp.argsort(-x, 0), (normal(1, 9, 2),))],
        leaves_alone=[(jnp.sort, (integers(0, 9),)), (lambda x: lax.top_k(x, 3), (normal(0, 9),))],
    )
