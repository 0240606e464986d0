"""Equations by what they compute, and what the steps of two loops make of the same entries.

A gradient's backward step often makes a gate of the loop's input that the forward step made, too. What it makes anyway
need not be stored for it.
"""

from collections.abc import Hashable, Iterable, Sequence

from aerogel._jax import Atom, JaxprEqn, Var

from ..loop import Loop
from ..normalize import equation_key
from ..program import is_var, rename
from ..same import KEPT_APART


class Made:
    """Equations by what they compute; those of a primitive are entered when one of these is looked for."""

    def __init__(self, eqns: Iterable[JaxprEqn]) -> None:
        self._of_name: dict[str, list[JaxprEqn]] = {}
        for eqn in eqns:
            self._of_name.setdefault(eqn.primitive.name, []).append(eqn)
        self._by_key: dict[Hashable, Sequence[Var]] = {}

    def find(self, eqn: JaxprEqn) -> Sequence[Var]:
        """The results of the last equation that computes the same; none if there is no such equation."""
        key = equation_key(eqn)
        self._by_key.update((equation_key(e), e.outvars) for e in self._of_name.pop(eqn.primitive.name, []))
        return () if key is None else self._by_key.get(key, ())


def made_there(loop: Loop, readers: Sequence[Loop]) -> set[Var]:
    """The values of the loop's step that each reader's step has anyway: entries, constants, and what it makes of these.

    The loops are of one length. They may run in opposite directions: an entry belongs to an index.
    """
    found = [_made_in(loop, reader) for reader in readers]
    return set[Var].intersection(*found) if found else set()


def _made_in(loop: Loop, reader: Loop) -> set[Var]:
    entries = {x: v for x, v in zip(reader.xs, reader.body_xs, strict=True) if is_var(x)}
    whole = {x: v for x, v in zip(reader.consts, reader.body_consts, strict=True) if is_var(x)}
    there: dict[Var, Atom] = {}
    there.update((v, entries[x]) for x, v in zip(loop.xs, loop.body_xs, strict=True) if is_var(x) and x in entries)
    there.update((v, whole[x]) for x, v in zip(loop.consts, loop.body_consts, strict=True) if is_var(x) and x in whole)
    made = Made(reader.body.eqns)
    for eqn in loop.body.eqns:
        given = [x for x in eqn.invars if is_var(x)]
        if eqn.effects or eqn.primitive.name in KEPT_APART or not given or any(x not in there for x in given):
            continue
        there.update(zip(eqn.outvars, made.find(rename(eqn, there)), strict=False))
    return set(there)
