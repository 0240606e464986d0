"""Minimum cuts of small random graphs, against all subsets."""

import importlib
import itertools
import random
import sys

import numpy as np
import pytest

from aerogel.compiler import cut
from aerogel.compiler.cut import SINK, SOURCE, Graph, reachable


def random_graph(seed: int) -> tuple[Graph, list[str]]:
    """Up to 7 nodes, costs between 1 ns and 10 ms, some edges that must not be cut."""
    rng = random.Random(seed)
    nodes = [f"n{k}" for k in range(rng.randint(1, 7))]
    graph = Graph()
    for a, b in itertools.permutations([SOURCE, *nodes, SINK], 2):
        if a == SINK or b == SOURCE or rng.random() > 0.35:
            continue
        if a in nodes and b in nodes and rng.random() < 0.3:
            graph.implies(a, b)
        else:
            graph.edge(a, b, 10.0 ** rng.uniform(-9, -2))
    return graph, nodes


@pytest.mark.parametrize("seed", range(150))
def test_no_subset_is_cheaper(seed: int) -> None:
    """What is taken costs what the best of all subsets costs (up to scaling), and implies nothing left."""
    graph, nodes = random_graph(seed)
    taken = graph.taken()
    best = min(graph.cost(set(some)) for n in range(len(nodes) + 1) for some in itertools.combinations(nodes, n))
    largest = max((c for c in graph.edges.values() if np.isfinite(c)), default=0.0)
    assert SINK not in taken
    assert SOURCE not in taken
    assert np.isfinite(graph.cost(taken))
    assert graph.cost(taken) <= best + 1e-6 * largest * len(graph.edges)


def test_the_smallest_of_equal_cuts() -> None:
    """Where taking a node and leaving it cost the same, it is left."""
    graph = Graph()
    graph.edge(SOURCE, "a", 1.0)
    graph.edge("a", SINK, 1.0)
    assert graph.taken() == set()


def test_costs_add_up_and_nothing_costs_nothing() -> None:
    """Edges between the same nodes add up; edges without cost do not exist."""
    graph = Graph()
    graph.edge(SOURCE, "a", 1.0)
    graph.edge(SOURCE, "a", 1.0)
    graph.edge("a", SINK, 1.5)
    graph.edge("b", SINK, 0.0)
    assert graph.taken() == {"a"}
    assert graph.cost({"a"}) == 1.5
    assert all("b" not in pair for pair in graph.edges)


def test_an_empty_graph() -> None:
    """Nothing is taken."""
    assert Graph().taken() == set()


def test_large_costs_beside_small_ones() -> None:
    """A long chain of dear edges does not reach what must not be cut."""
    graph = Graph()
    for k in range(200):
        graph.edge(SOURCE, k, 1.0)
        graph.implies(k, k + 1)
    graph.edge(200, SINK, 1e-9)
    assert graph.taken() == set(range(201))


def test_reachable() -> None:
    """All nodes behind the start, and the start."""
    assert reachable(["a"], {"a": ["b"], "b": ["c", "a"], "d": ["a"]}) == {"a", "b", "c"}


def searched_by(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Both limits on the search in Python; with 0 it gives up at once."""
    monkeypatch.setattr(cut, "LOOKS", looks)
    monkeypatch.setattr(cut, "LOOKS_FOR_IMPORT", looks)


@pytest.mark.parametrize("seed", range(60))
def test_both_searches_take_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes few steps is searched in Python, the rest by SciPy: there is one smallest minimum cut."""
    graph, _ = random_graph(seed)
    found = []
    for looks in (0, 10**6):
        searched_by(monkeypatch, looks)
        found.append(graph.taken())
    assert found[0] == found[1]


@pytest.mark.parametrize("looks", [0, 10**6])
def test_a_short_path_gives_way(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest path takes the edge that another path needs: all flows only when it turns aside again."""
    searched_by(monkeypatch, looks)
    graph = Graph()
    for a, b in [(SOURCE, "a"), ("a", "d"), ("d", SINK), (SOURCE, "b"), ("b", "e"), ("e", "d"),
                 ("a", "f"), ("f", "g"), ("g", "h"), ("h", SINK)]:  # fmt: skip
        graph.edge(a, b, 1.0)
    assert graph.taken() == set()


def layered_graph(layers: int, width: int) -> Graph:
    """Layers of nodes, each node with edges to two of the next layer."""
    rng = random.Random(0)
    graph = Graph()
    for k in range(width):
        graph.edge(SOURCE, (0, k), rng.random())
        graph.edge((layers, k), SINK, rng.random())
        for layer in range(layers):
            for _ in range(2):
                graph.edge((layer, k), (layer + 1, rng.randrange(width)), rng.random())
    return graph


@pytest.mark.parametrize(("is_there", "searches"), [(False, []), (True, ["SciPy"])])
def test_scipy_is_not_imported_for_a_middling_graph(
    is_there: bool, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing SciPy takes longer than a few hundred paths in Python; where it is there, it is faster."""
    made, by_scipy = [], cut._reached_by_scipy

    def watched(room: cut.Room, nodes: int) -> set[int]:
        made.append("SciPy")
        return by_scipy(room, nodes)

    wanted = layered_graph(12, 20).taken()
    monkeypatch.setattr(cut, "_reached_by_scipy", watched)
    if is_there:
        importlib.import_module("scipy.sparse.csgraph")
    else:
        monkeypatch.delitem(sys.modules, "scipy.sparse.csgraph", raising=False)
    assert layered_graph(12, 20).taken() == wanted
    assert made == searches
