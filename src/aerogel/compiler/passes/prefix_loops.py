"""Prefix loops: what `jax.lax.associative_scan` joins in a tree is joined one after the other, on a CPU.

The tree has log2(n) levels, each of which passes over memory several times, and joins twice as often as a loop. Its
gradient reads all levels. A processor with few cores gains nothing from them.
"""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._jax import Jaxpr

from ..cost import jaxpr_seconds
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..prefix_checks import associates, is_smooth
from ..prefix_loops import PrefixLoop, in_its_place
from ..prefix_matches import Found, Matches
from ..prefix_trees import Tree, Trees
from ..program import Program, where
from ..report import Decision

NAME = "prefix-loops"


@dataclass(frozen=True)
class PrefixLoops:
    """The pass. Bound: for each number of entries, what may be a tree is traced once, and its gradient 16 times."""

    early: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops, and a decision for each tree."""
        if context.platform != "cpu" or self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    level = Level(jaxpr)
    trees = Trees(level)
    lengths = trees.lengths()
    if not lengths:
        return jaxpr
    matches, edits, gone = Matches(level), list[Edit](), set[int]()
    for tree in (tree for length in lengths for tree in trees.of_length(length)):
        if any(level.made_by.get(x) in gone for x in tree.elements):
            continue  # a level of a tree that was found
        found = matches.find(tree)
        if found is None:
            continue
        edit = found if isinstance(found, str) else _edit(level, tree, found, context)
        fired = isinstance(edit, Edit)
        what = f"an associative scan of {tree.length} entries" + " is a loop" * fired
        reason = "a tree joins twice as often, and passes over memory at each level" if fired else edit
        line = where(tree.like)
        decisions.append(Decision(NAME, what, line, fired, str(reason), exactness=Exactness.FINITE.value))
        if isinstance(edit, Edit):
            edits.append(edit)
            gone |= edit.gone
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _edit(level: Level, tree: Tree, found: Found, context: Context) -> Edit | str:
    loop = PrefixLoop(tree, [*found.prefixes, *found.cotangents])
    if found.totals and not is_smooth(loop.step):
        return "where two elements are equal, the derivative of what joins them depends on the order"
    if not associates(loop.step, len(tree.elements)):
        return "what joins two elements is not associative, or not of all numbers"
    return in_its_place(level, tree, found)
