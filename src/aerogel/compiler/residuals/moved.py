"""What moves the entries of a step's state: rolls, paddings, a reversal, of which a backward step makes its own.

A stencil reads its state at neighbouring places, and JAX stores what it read there: Burgers' equation stores its state
and two differences of rolled ones. The state alone is enough.
"""

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import shape_of
from ..cost import Machine, equation_seconds
from ..cost.primitives import DEAR
from ..loop import Loop
from ..program import is_var

# A seam in an array of one axis is a condition between two loops; with more axes it is one for each entry, which keeps
# all that is computed with it from being vector code: per entry, 0.25 ns and 0.9 ns were measured of gradients of
# stencils (4,096 entries, and shallow water on 64 x 64; jaxlib 0.10.2).
SEAM_SECONDS = 2.5e-10
INNER_SEAM_SECONDS = 1e-9
# The gradient of what moves entries adds paddings: seams, which `loop-shifts` takes out of rows of so many entries.
# Beside those that stay what is dear is scalar code: of 48 x 48 entries an exponential that was computed again took a
# gradient 1.5 of plain JAX's time, and 0.74 where it was stored.
SHORT_ROW = 64

MOVES = frozenset(("concatenate", "pad", "rev"))
CUTS = frozenset(("slice", "split", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"))


def seconds_of_moved(loop: Loop, machine: Machine) -> dict[int, float]:
    """The ids of the equations that move entries of one state or input of a step, each with its time in a reader.

    What else they join is the same in each step: the values at a boundary.
    """
    sources: dict[Var, Var | None] = {v: v for v in (*loop.body_xs, *loop.body_carry)}
    sources.update((v, None) for v in loop.body_consts)
    readers: dict[Var, int] = {}
    for eqn in loop.body.eqns:
        for x in set(filter(is_var, eqn.invars)):
            readers[x] = readers.get(x, 0) + 1
    found: dict[int, float] = {}
    for eqn in loop.body.eqns:
        moves = eqn.primitive.name in MOVES
        if not (moves or eqn.primitive.name in CUTS) or not all(_is_known(x, sources) for x in eqn.invars):
            continue
        of = {source for x in eqn.invars if is_var(x) and (source := sources[x]) is not None}
        if len(of) <= 1:
            sources.update((v, next(iter(of), None)) for v in eqn.outvars)
            if moves:
                found[id(eqn)] = _seconds(eqn, readers, machine)
    return found


def scalar_beside_seams(loop: Loop, moved: dict[int, float]) -> set[int]:
    """The ids of dear equations that would be scalar code if a reader computed them: `moved` is of `seconds_of_moved`.

    All of them where seams in short rows stay, else those of an interior along rows: their cotangents are padded.
    """
    dear = [eqn for eqn in loop.body.eqns if eqn.primitive.name in DEAR]
    rows = (shape_of(eqn.outvars[0]) for eqn in loop.body.eqns if id(eqn) in moved)
    if any(len(shape) > 1 and shape[-1] < SHORT_ROW for shape in rows):
        return {id(eqn) for eqn in dear}
    states, inner = {*loop.body_carry, *loop.body_xs}, set[Var]()
    for eqn in loop.body.eqns:
        read = {x for x in eqn.invars if is_var(x)}
        if eqn.primitive.name == "slice" and not states.isdisjoint(read):
            (out,) = eqn.outvars
            inner |= {out} if shape_of(out)[-1:] != shape_of(eqn.invars[0])[-1:] else set()
        elif eqn.primitive.name in ELEMENTWISE:
            (out,) = eqn.outvars
            inner |= {out} if any(x in inner and x.aval.size == out.aval.size for x in read) else set()
    return {id(eqn) for eqn in dear if eqn.outvars[0] in inner}


def _is_known(x: Atom, sources: dict[Var, Var | None]) -> bool:
    return not is_var(x) or x in sources


def _seconds(eqn: JaxprEqn, readers: dict[Var, int], machine: Machine) -> float:
    """XLA writes a padding that several read; what is joined, it makes for each of them."""
    (out,) = eqn.outvars
    if machine.name != "cpu" or (eqn.primitive.name == "pad" and readers.get(out, 0) > 1):
        return equation_seconds(eqn, machine)
    return float(out.aval.size * (SEAM_SECONDS if out.aval.ndim <= 1 else INNER_SEAM_SECONDS))
