"""The search for orders: its two starts, and that alike equations share what was found out about them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from aerogel._jax import Jaxpr
from aerogel.compiler.normalize import normalize
from aerogel.compiler.orders.layout import Layout, layout_of
from aerogel.compiler.orders.orient import best_orders, descend, shared_first
from aerogel.compiler.orders.prices import Price, Prices
from aerogel.compiler.orders.terms import Group, groups_of, terms_of
from compiler.programs_of import traced


def program_of(f: Callable[..., Any], *args: Any) -> Jaxpr:
    """The normal form of a function."""
    return normalize(traced(f, *args))[0].jaxpr


def only_group(jaxpr: Jaxpr) -> tuple[Layout, Group]:
    """The layout of a program, and the one group of its clusters that has terms."""
    layout = layout_of(jaxpr, "cpu")
    (group,) = (g for g in groups_of(layout, terms_of(jaxpr, layout, Prices("cpu"))) if g.terms)
    return layout, group


def network(depth: int, examples: int) -> Jaxpr:
    """`tanh(w @ x)` per example, `depth` times, under `vmap`: every layer's result has its features first."""

    def layers(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(w @ x)
        return x

    return program_of(jax.vmap(layers, (None, 0)), [jnp.ones((8, 8))] * depth, jnp.ones((examples, 8)))


@pytest.mark.parametrize("depth", [3, 8])
def test_a_chain_of_products_turns_as_a_whole(depth: int) -> None:
    """From the program as it is each turn alone gains nothing; with the batch first everywhere nothing is copied."""
    layout, group = only_group(network(depth, 4))
    start = {k: layout.orders[k] for k in group.clusters}
    stuck = descend(layout, group)
    layout.turn(start)
    weight, orders = best_orders(layout, group)
    assert weight < stuck / 1.1
    assert orders == shared_first(layout, group)
    layout.turn(orders)
    copies = [term for term in group.terms if term.eqn is None or term.eqn.primitive.name == "transpose"]
    assert copies
    assert not any(term.weight(layout.orders) for term in copies)


def test_the_program_as_it_is_may_be_the_better_start() -> None:
    """Where dimensions that many share are wanted last, the descent from the natural orders wins."""

    def f(w: Any, b: Any, xs: Any) -> Any:
        def layer(x: Any) -> Any:
            for k in range(10):
                x = jax.nn.relu(w @ x + b * (0.5 + k))
            return x

        return jnp.mean(jax.vmap(layer)(xs))

    layout, group = only_group(program_of(f, jnp.ones((16, 16)), jnp.ones(16), jnp.ones((4, 16))))
    start = {k: layout.orders[k] for k in group.clusters}
    natural = descend(layout, group)
    layout.turn(shared_first(layout, group))
    shared = descend(layout, group)
    layout.turn(start)
    assert natural < shared
    assert best_orders(layout, group)[0] == natural


def test_the_search_changes_nothing_by_itself() -> None:
    """The weight that is found is that of the orders that are found; the layout is as it was."""
    layout, group = only_group(network(3, 16))
    before = list(layout.orders)
    weight, orders = best_orders(layout, group)
    assert layout.orders == before
    layout.turn(orders)
    assert group.weight(layout.orders) == weight


def test_alike_terms_share_a_price() -> None:
    """A deep network asks no more of products and readers than a shallow one: what it costs is linear and small."""

    def prices(depth: int) -> set[Price]:
        return {term.price for term in only_group(network(depth, 16))[1].terms}

    assert len(only_group(network(40, 16))[1].terms) > 3 * len(prices(40))
    assert len(prices(40)) == len(prices(4))
