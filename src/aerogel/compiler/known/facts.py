"""Facts about values in a loop's body: which ones are affine in the number of the step.

An index `i` that starts at 0 and grows by 1, its wrapped form `where(i < 0, i + n, i)`, its conversions and
broadcasts are all `scale * t + offset`: with that known, what is read or written at such an index is read or written
once for each step, at a place that is known beforehand.
"""

import numpy as np

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..loop import Loop, as_loop
from ..program import is_var
from ..record import record


@record
class Affine:
    """Every element is `scale * t + offset`, t the index of the step."""

    scale: int
    offset: int

    def bounds(self, length: int) -> tuple[int, int]:
        """The smallest and the largest value in a loop of `length` steps."""
        last = self.scale * (length - 1) + self.offset
        return min(self.offset, last), max(self.offset, last)

    def turned(self, length: int) -> "Affine":
        """The same value of a step that is counted from the other end."""
        return Affine(-self.scale, self.offset + self.scale * (length - 1))


def level_counters(jaxpr: Jaxpr) -> dict[Var, Affine]:
    """Stacked values of a program that are affine in their leading index: `arange` and its like."""
    found: dict[Var, Affine] = {}
    for eqn in jaxpr.eqns:
        name, out = eqn.primitive.name, eqn.outvars[0] if eqn.outvars else None
        loop = as_loop(eqn)
        if loop is not None and any(is_integer(y) for y in loop.ys):
            facts = body_facts(loop, found)
            found.update({y: facts[v] for y, v in zip(loop.ys, loop.body_ys, strict=True) if is_var(v) and v in facts})
        if out is None or loop is not None or not is_integer(out):
            continue
        if name == "iota" and eqn.params["dimension"] == 0:
            found[out] = Affine(1, 0)
        else:
            fact = _step(eqn, found, length=None)
            if fact is not None and _keeps_leading(eqn):
                found[out] = fact
    return found


def _keeps_leading(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name == "broadcast_in_dim":
        return is_var(eqn.invars[0]) and tuple(eqn.params["broadcast_dimensions"][:1]) == (0,)
    if eqn.primitive.name == "reshape":
        return eqn.invars[0].aval.shape[:1] == eqn.outvars[0].aval.shape[:1]
    return eqn.primitive.name in ("add", "sub", "mul", "convert_element_type")


def body_facts(loop: Loop, counters: dict[Var, Affine]) -> dict[Var, Affine]:
    """The values of a loop's body that are affine in the step's index.

    Args:
        loop: the loop.
        counters: what is known of the loop's stacked inputs (`level_counters`).
    """
    found: dict[Var, Affine] = {}
    for x, var in zip(loop.xs, loop.body_xs, strict=True):
        if is_var(x) and x in counters:
            found[var] = counters[x]
    made = {v: eqn for eqn in loop.body.eqns for v in eqn.outvars}
    for init, var, nxt in zip(loop.init, loop.body_carry, loop.next_carry, strict=True):
        fact = _counter(loop, init, var, nxt, made)
        if fact is not None:
            found[var] = fact
    never: set[Var] = set()  # comparisons that are false in every step
    for eqn in loop.body.eqns:
        _learn(eqn, found, never, loop.length)
    return found


def _counter(loop: Loop, init: Atom, var: Var, nxt: Atom, made: dict[Var, JaxprEqn]) -> Affine | None:
    """A carry that starts at a literal and grows by a literal in every step."""
    if not isinstance(init, Literal) or not is_integer(var) or var.aval.shape or not is_var(nxt) or nxt not in made:
        return None
    eqn = made[nxt]
    if eqn.primitive.name not in ("add", "sub"):
        return None
    a, b = eqn.invars
    if eqn.primitive.name == "add" and b is var:
        a, b = b, a
    if a is not var or not isinstance(b, Literal):
        return None
    scale = int(b.val) if eqn.primitive.name == "add" else -int(b.val)
    start = int(init.val)
    if loop.reverse:
        return Affine(-scale, start + scale * (loop.length - 1))
    return Affine(scale, start)


def _learn(eqn: JaxprEqn, found: dict[Var, Affine], never: set[Var], length: int) -> None:
    out = eqn.outvars[0] if eqn.outvars else None
    if out is None:
        return
    name = eqn.primitive.name
    if name == "lt":
        value, bound = (fact_of(x, found) for x in eqn.invars)
        if value and bound and value.bounds(length)[0] >= bound.bounds(length)[1]:
            never.add(out)
    elif name == "select_n" and is_var(eqn.invars[0]) and eqn.invars[0] in never:
        fact = fact_of(eqn.invars[1], found)
        if fact is not None and is_integer(out):
            found[out] = fact
    elif is_integer(out):
        fact = _step(eqn, found, length)
        if fact is not None:
            found[out] = fact


def _step(eqn: JaxprEqn, found: dict[Var, Affine], length: int | None) -> Affine | None:
    """What arithmetic makes of affine values; None where the result is not known to be affine."""
    name = eqn.primitive.name
    if name in ("broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy"):
        if name == "convert_element_type" and not is_integer(eqn.invars[0]):
            return None
        fact = fact_of(eqn.invars[0], found)
    elif name in ("add", "sub", "mul"):
        a, b = (fact_of(x, found) for x in eqn.invars)
        fact = None if a is None or b is None else _arithmetic(name, a, b)
    else:
        return None
    if fact is None or not any(is_var(x) and x in found for x in eqn.invars):
        return None
    info = np.iinfo(eqn.outvars[0].aval.dtype)
    lowest, highest = fact.bounds(length if length is not None else eqn.outvars[0].aval.shape[0])
    return fact if info.min <= lowest and highest <= info.max else None


def _arithmetic(name: str, a: Affine, b: Affine) -> Affine | None:
    if name == "add":
        return Affine(a.scale + b.scale, a.offset + b.offset)
    if name == "sub":
        return Affine(a.scale - b.scale, a.offset - b.offset)
    if a.scale and b.scale:
        return None
    return Affine(a.scale * b.offset + b.scale * a.offset, a.offset * b.offset)


def fact_of(x: Atom, found: dict[Var, Affine]) -> Affine | None:
    """The fact about an atom; a literal integer is a constant one."""
    if isinstance(x, Literal):
        return Affine(0, int(x.val)) if np.ndim(x.val) == 0 and is_integer(x) else None
    return found.get(x)


def is_integer(x: Atom) -> bool:
    """Whether a value holds integers (of NumPy's kinds)."""
    dtype = getattr(x.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "iu"
