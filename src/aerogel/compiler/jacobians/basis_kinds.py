"""Rows of three kinds: those of a Jacobian, those of an outer product, and products of both.

Row b of a value is L(e_b) (`PLAIN`), w_b M(u) (`SCALED`), or w_b L(e_b) (`BOTH`: anything linear in w_b e_b, as their
products are). Summed up over b the last is L(w). Of several outer products w is as many rows, and what is made of each
is summed up. A loop in whose steps the sums are taken is the same loop over what stands for its rows.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aerogel._jax import Atom, ClosedJaxpr, JaxprEqn, Var, scan_counts, scan_params, trace_small

from ..axes import MONOIDS, Axis, Mapped, Reduced, along, linear_in
from ..axes.rebind import bind
from ..known.linear_values import is_zero, linear_outs
from ..known.repeated_rows import Asked, asked_outside, is_repeated, operands, values_of
from ..level import Level
from ..program import is_var
from ..zeros import zero_outputs
from .basis_rows import follow, is_one_map


class Kind(Enum):
    """What row b of a value is."""

    PLAIN = "of the Jacobian"
    SCALED = "of an outer product"
    BOTH = "of their product"


Rows = tuple[Kind, Axis]
Made = tuple[Mapped, list[Rows | None], bool]  # of other rows; what has rows then; whether it sums up any


@dataclass
class Region:
    """What a level makes of rows.

    Attributes:
        count: how many rows there are.
        kinds: of which kind the rows of a value are, and where they are in it.
        zeros: what is zero.
        outside: whether all rows of what comes from outside are the same.
        made: how an equation makes the same of other rows.
        sums: which of these sum up rows, or are loops that do: their results without rows are what is wanted.
        open: whether an equation reads rows and is none of these.
    """

    level: Level
    count: int
    after_differentiation: bool
    kinds: dict[Var, Rows]
    zeros: Set[Var] = frozenset()
    outside: Asked | None = None
    made: dict[int, Mapped] = field(default_factory=dict)
    sums: set[int] = field(default_factory=set)
    open: bool = False

    def add(self, x: Var, kind: Kind, dim: int) -> None:
        """Follows what is made of another value with rows, too."""
        self.kinds[x] = (kind, Axis(dim))
        self.grow([x])

    def grow(self, seeds: Iterable[Var]) -> None:
        """Follows what is made of `seeds`, which have rows, reader by reader."""

        def visit(place: int) -> list[Var]:
            eqn = self.level.eqns[place]
            known = {k: self.kinds[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in self.kinds}
            found = self._made(eqn, known)
            if found is None:
                self.open = True
                return []
            self.made[place], kinds, sums = found
            if sums:
                self.sums.add(place)
            new = {v: rows for v, rows in zip(eqn.outvars, kinds, strict=True) if rows is not None}
            self.kinds.update(new)
            return [*new]

        follow(self.level, (k for x in seeds for k in self.level.readers(x)), visit)

    def _is_same(self, x: Atom, axis: Axis) -> bool:
        return is_zero(self.level, x, self.zeros) or is_repeated(self.level, x, axis, self.outside)

    def _made(self, eqn: JaxprEqn, known: Mapping[int, Rows]) -> Made | None:
        kinds, axes = {kind for kind, _ in known.values()}, {k: axis for k, (_, axis) in known.items()}
        if len(kinds) == 1:
            (kind,), outs = kinds, linear_outs(self.level, eqn, set(known), self.zeros)
        else:
            kind, outs = Kind.BOTH, {0} if _multiplies(eqn, known) else set[int]()
        if outs:
            found = along(eqn, axes, self.count, after_differentiation=self.after_differentiation)
            if isinstance(found, Mapped) and is_one_map(eqn, found, axes, outs, self._is_same):
                return found, [None if axis is None else (kind, axis) for axis in found.outs], False
            if isinstance(found, Reduced) and kind is Kind.BOTH and _adds_rows(found, axes):
                return _summed(found), [None] * len(eqn.outvars), True
        return self._loop(eqn, known) if eqn.primitive.name == "scan" and not eqn.effects else None

    def _loop(self, eqn: JaxprEqn, known: Mapping[int, Rows]) -> Made | None:
        """A loop all of whose steps make the same of other rows; their sums are numbers of the step."""
        body, (consts, carries) = eqn.params["jaxpr"], scan_counts(eqn.params)
        jaxpr, first = body.jaxpr, consts + carries
        if body.consts or any(k >= first and axis.dim == 0 for k, (_, axis) in known.items()):
            return None
        ins = {k: (kind, axis if k < first else axis.moved(-1)) for k, (kind, axis) in known.items()}
        level, zero = Level(jaxpr), {k for k, x in enumerate(eqn.invars) if is_zero(self.level, x, self.zeros)}
        from_zero = zero & {*range(consts, first)}
        outside = asked_outside(eqn, self._is_same)
        tried = from_zero - ins.keys()  # zero at first: what they become shows what rows they have
        while True:
            known_inside = {jaxpr.invars[k]: r for k, r in ins.items()}
            zeros = zero_outputs(jaxpr, (jaxpr.invars[k] for k in (zero - from_zero) | tried))
            inside = Region(level, self.count, self.after_differentiation, known_inside, zeros, outside)
            inside.grow(known_inside)
            outs = [inside.kinds.get(x) if is_var(x) else None for x in jaxpr.outvars]
            moved = {consts + j: rows for j, rows in enumerate(outs[:carries]) if rows != ins.get(consts + j)}
            for k, rows in moved.items():
                if rows is None or k in ins or k not in from_zero:
                    return None
                ins[k] = rows
            if not moved and not tried:
                break
            tried = from_zero - ins.keys() if moved else set[int]()
        if inside.open:
            return None
        places = tuple(
            None if (r := ins.get(k)) is None else r[1] if k < first else r[1].moved(1) for k in range(len(eqn.invars))
        )
        results = [r if r is None or j < carries else (r[0], r[1].moved(1)) for j, r in enumerate(outs)]

        def block(start: Any, size: int, *inputs: Any) -> list[Any]:
            avals = [
                aval if (r := ins.get(k)) is None else aval.update(shape=r[1].resize(aval.shape, size))
                for k, aval in enumerate(body.in_avals)
            ]
            smaller = trace_small(lambda *args: inside.run(body, size, args), avals)
            return bind(eqn, inputs, scan_params(eqn.params, smaller, consts, carries))

        return Mapped(places, tuple(r and r[1] for r in results), block), results, bool(inside.sums)

    def run(self, body: ClosedJaxpr, size: int, args: Iterable[Any]) -> list[Any]:
        """The results of the whole level, with `size` rows wherever there are rows."""
        env: dict[Var, Any] = dict(zip(body.jaxpr.invars, args, strict=True))
        for place, eqn in enumerate(self.level.eqns):
            if place in self.made:
                outs = self.made[place].block(0, size, *self._operands(place, env, size))
            else:
                outs = bind(eqn, values_of(eqn.invars, env), eqn.params)
            env.update(zip(eqn.outvars, outs, strict=True))
        return values_of(body.jaxpr.outvars, env)

    def _operands(self, place: int, env: Mapping[Var, Any], size: int) -> list[Any]:
        eqn = self.level.eqns[place]
        known = [k for k, x in enumerate(eqn.invars) if is_var(x) and x in self.kinds]
        return operands(eqn, known, self.made[place].ins, env, size)


def _multiplies(eqn: JaxprEqn, known: Mapping[int, Rows]) -> bool:
    """Whether an equation is a product of rows of a Jacobian and rows of an outer product."""
    factors = eqn.primitive.name in ("mul", "dot_general") and set(linear_in(eqn)) == {0, 1}
    return factors and {kind for kind, _ in known.values()} == {Kind.PLAIN, Kind.SCALED}


def _adds_rows(found: Reduced, known: Mapping[int, Axis]) -> bool:
    alone = all(axis is None or k in known for k, axis in enumerate(found.ins))
    return alone and found.monoid is MONOIDS["add"] and not found.uses_start


def _summed(found: Reduced) -> Mapped:
    """A sum over rows as an equation whose results have none."""

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        return found.finish(*found.block(start, size, *inputs))

    return Mapped(found.ins, (None,), block)
