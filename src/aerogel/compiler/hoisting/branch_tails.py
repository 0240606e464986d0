"""What a branch makes last for its share in a sum: equations that can stand behind it, on what it gives instead."""

from collections.abc import Collection, Sequence

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..loop import is_float
from ..program import is_var
from ..record import record
from .linear_sums import Body, Values
from .sink import SMALLEST_OUTER

SPREADING = frozenset("broadcast_in_dim reshape transpose expand_dims squeeze".split())
# Behind the branches they cost nothing by themselves: they are part of the sum.
LIGHT = SPREADING | frozenset("add add_any sub neg".split())
# A product is made behind the branches where it has so many times the bytes of its factors.
AMPLIFIED = 4


@record
class Tail:
    """What of a branch can be done behind it.

    Attributes:
        after: the places of its equations there.
        given: what they are made of, and the branch gives instead.
        is_once: whether any of them reads what is the same in every step, too.
    """

    after: frozenset[int]
    given: tuple[Var, ...]
    is_once: bool


def values_of(branch: Jaxpr, eqn: JaxprEqn, body: Body) -> Values:
    """A branch; what it makes of what is the same in all steps is that, too."""
    operands = zip(branch.invars, eqn.invars[1:], strict=True)
    fixed = {v for v, x in operands if not is_var(x) or x in body.fixed}
    for one in branch.eqns:
        if not one.effects and all(not is_var(x) or x in fixed for x in one.invars):
            fixed.update(one.outvars)
    return Values(branch, fixed)


def tail_of(values: Values, wanted: Collection[int], once: Collection[int] | None) -> Tail:
    """What makes the wanted results of a branch and nothing else, from the last equation on."""
    branch = values.jaxpr
    others = {x for k, x in enumerate(branch.outvars) if k not in wanted}
    terms = [x for k, x in enumerate(branch.outvars) if k in wanted and is_var(x) and not values.is_zero(x)]
    after: set[int] = set()
    read, factors, is_once = set(terms), set[Var](), False
    for i in reversed(range(len(branch.eqns))):
        eqn = branch.eqns[i]
        outs = eqn.outvars
        if read.isdisjoint(outs) or len(outs) != 1 or outs[0] in others or outs[0] in values.fixed:
            continue
        if any(reader >= 0 and reader not in after for reader in values.readers[outs[0]]):
            continue
        moving = [x for k in values.moving(eqn) if is_var(x := eqn.invars[k])]
        if outs[0] in factors or _is_amplified(values, eqn, moving):
            if outs[0] in factors and not (eqn.primitive.name in SPREADING and len(moving) == 1):
                continue
            factors.update(moving)
        elif values.is_linear(eqn) and (once is None or i in once or eqn.primitive.name in LIGHT):
            is_once |= any(is_var(x) and x in values.fixed for x in eqn.invars)
        else:
            continue
        after.add(i)
        read.update(moving)
    made = {v for i in after for v in branch.eqns[i].outvars}
    reads = (x for i in sorted(after) for k in values.moving(branch.eqns[i]) if is_var(x := branch.eqns[i].invars[k]))
    given = tuple(x for x in dict.fromkeys((*terms, *reads)) if x not in made)
    is_less = sum(nbytes(x.aval) for x in given) <= sum(nbytes(x.aval) for x in terms)
    is_plain = all(is_float(x.aval.dtype) and not _jax.explicit_mesh(x.aval) for x in given)
    return Tail(frozenset(after), given, is_once) if is_less and is_plain else Tail(frozenset(), (), False)


def _is_amplified(values: Values, eqn: JaxprEqn, moving: Sequence[Var]) -> bool:
    """Whether an equation is a product of each number of one value with each of another, and much larger."""
    size = nbytes(eqn.outvars[0].aval)
    if len(moving) != 2 or size < SMALLEST_OUTER:
        return False
    if eqn.primitive.name == "dot_general":
        contract, batch = eqn.params["dimension_numbers"]
        if contract[0] or batch[0] or eqn.params["out_sharding"] is not None:
            return False
    elif eqn.primitive.name == "mul":
        moving = [_unspread(values, x) for x in moving]
    else:
        return False
    return AMPLIFIED * sum(nbytes(x.aval) for x in moving) <= size


def _unspread(values: Values, x: Var) -> Var:
    """What a value repeats."""
    maker = values.jaxpr.eqns[values.makers[x]] if x in values.makers else None
    source = maker.invars[0] if maker is not None and maker.primitive.name == "broadcast_in_dim" else None
    return source if source is not None and is_var(source) else x


def fixed_in(values: Values, tail: Tail) -> set[int]:
    """What the equations of a tail read that a branch makes of what is the same in every step."""
    found: set[int] = set()
    waiting = list(tail.after)
    while waiting:
        for x in values.jaxpr.eqns[waiting.pop()].invars:
            maker = values.makers.get(x) if is_var(x) and x in values.fixed and x not in tail.given else None
            if maker is not None and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found
