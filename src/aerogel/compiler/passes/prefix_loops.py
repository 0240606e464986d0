"""Prefix loops: what `jax.lax.associative_scan` joins in a tree is joined one after the other, on a CPU.

The tree has log2(n) levels, each of which passes over memory several times, and joins twice as often as a loop. Its
gradient reads all levels. A processor with few cores gains nothing from them.
"""

from collections.abc import Iterable
from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import with_calls_open
from ..pipeline import Context
from ..prefixes.prefix_checks import associates, is_smooth
from ..prefixes.prefix_loops import PrefixLoop, in_their_places
from ..prefixes.prefix_matches import Found, Matches
from ..prefixes.prefix_trees import Tree, Trees
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "prefix-loops"
EXACTNESS = Exactness.FINITE
READ = "its levels are read by more than its gradient"


@record
class PrefixLoops:
    """The pass. Bound: for each number of entries, what may be a tree is traced once, and its gradient 16 times."""

    platforms: ClassVar = ("cpu",)
    early: ClassVar = True

    name: str = NAME
    exactness: Exactness = EXACTNESS

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops, and a decision for each tree."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    if not Trees(Level(jaxpr)).lengths():
        return jaxpr
    level = Level(jaxpr if context.before_differentiation else with_calls_open(jaxpr))
    search = _Search(level, context.before_differentiation)
    found, refused = search.run()
    for tree, reason in refused:
        what = f"an associative scan of {tree.length} entries stays a tree"
        decisions.append(Decision(NAME, what, where(tree.like), False, reason, exactness=EXACTNESS.value))
    for tree, _ in found:
        what = f"an associative scan of {tree.length} entries is a loop"
        reason = "a tree joins twice as often, level by level"
        decisions.append(Decision(NAME, what, where(tree.like), True, reason, exactness=EXACTNESS.value))
    if not found:
        return jaxpr
    return apply_edits(level.jaxpr, in_their_places([(search.loops[id(tree)], one) for tree, one in found]))[0]


class _Search:
    """The trees of a level that are loops, and those that stay, with the reason."""

    def __init__(self, level: Level, before_differentiation: bool) -> None:
        self.level, self.before_differentiation = level, before_differentiation
        self.matches = Matches(level)
        self.seen: set[int] = set()  # places of the equations of trees that were looked at
        self.loops: dict[int, PrefixLoop] = {}
        self.refused: list[tuple[Tree, str]] = []

    def run(self) -> tuple[list[tuple[Tree, Found]], list[tuple[Tree, str]]]:
        """What is found, those with the most entries first."""
        trees = Trees(self.level)
        found = [one for length in trees.lengths() for one in self._of_length(trees.of_length(length))]
        while left := self.matches.left([one for _, one in found]):
            self.refused += ((tree, READ) for tree, one in found if one in left)
            found = [(tree, one) for tree, one in found if one not in left]
        return found, self.refused

    def _of_length(self, trees: Iterable[Tree]) -> list[tuple[Tree, Found]]:
        found, incomplete = list[tuple[Tree, Found]](), list[tuple[Tree, Found]]()
        for tree in trees:
            one = None if self._is_seen(tree) else self.matches.find(tree)
            if one is None:
                continue
            if not tree.is_part and self.matches.left([one]):  # its parts may be what the program has
                incomplete.append((tree, one))
                continue
            self.seen |= one.gone
            reason = self._refusal(tree, one)
            if reason is None:
                found.append((tree, one))
            else:
                self.refused.append((tree, reason))
        for tree, one in incomplete:
            if not self._is_seen(tree):
                self.seen |= one.gone
                self.refused.append((tree, READ))
        return found

    def _is_seen(self, tree: Tree) -> bool:
        return all(self.level.made_by.get(v) in self.seen for v in tree.joined)

    def _refusal(self, tree: Tree, found: Found) -> str | None:
        loop = self.loops[id(tree)] = PrefixLoop(tree, [*found.prefixes, *found.cotangents])
        if (found.totals or self.before_differentiation) and not is_smooth(loop.step):
            return "where two elements are equal, the derivative of what joins them depends on the order"
        if not associates(loop.step, len(tree.elements)):
            return "what joins two elements is not associative, or not of all numbers"
        return None
