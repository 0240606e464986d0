"""Outputs of a loop that are compared with the first one of them: the first step is taken out of the loop.

`abs(E - E[0]).max()` needs the first energy at every later step, so the loop that makes `E` cannot finish any of
them. With step 0 in front, `E` is a concatenation of its output and the loop's, and what is made of that is taken
part by part.
"""

from aerogel._jax import Atom, JaxprEqn, Var

from ..cost import nbytes
from ..level import Edit, Level
from ..loop import Loop, as_loop
from ..program import Builder, count_equations, depends_on, is_var
from .split import Part, Split, in_order
from .window import Window

SMALLEST_OUTPUT = 65_536  # bytes
# The body is compiled once more.
LARGEST_BODY = 1000


def knotted_outputs(level: Level, loop: Loop) -> list[Var]:
    """The stacked outputs whose first entry meets the others again; none where another loop reads what this one made.

    A loop that reads them (the backward one, of a gradient) wants them whole.
    """
    if loop.length < 3 or count_equations(loop.body) > LARGEST_BODY:
        return []
    found = [y for y in loop.ys if nbytes(y.aval) >= SMALLEST_OUTPUT and _is_knotted(level, loop, y)]
    if not found:
        return []
    made = depends_on(level.jaxpr, loop.eqn.outvars)
    again = (eqn for eqn in level.eqns if eqn is not loop.eqn and eqn.primitive.name in ("scan", "while"))
    return [] if any(is_var(x) and x in made for eqn in again for x in eqn.invars) else found


def _is_knotted(level: Level, loop: Loop, y: Var) -> bool:
    readers = level.readers(y)
    firsts = [i for i in readers if i >= 0 and _takes_first(level.eqns[i], loop)]
    others = [i for i in readers if i >= 0 and i not in firsts]
    if not firsts or not others or -1 in readers:
        return False
    from_first = depends_on(level.jaxpr, (v for i in firsts for v in level.eqns[i].outvars))
    from_all = {y} | depends_on(level.jaxpr, (v for i in others for v in level.eqns[i].outvars))

    def meets(eqn: JaxprEqn) -> bool:
        read = [x for x in eqn.invars if is_var(x)]
        return any(x in from_first for x in read) and any(x in from_all and x not in from_first for x in read)

    return any(meets(eqn) for eqn in level.eqns)


def _takes_first(eqn: JaxprEqn, loop: Loop) -> bool:
    """Whether an equation takes of a stacked output the entry, or a part of it, of the step that runs first."""
    if eqn.primitive.name != "slice":
        return False
    first = loop.length - 1 if loop.reverse else 0
    return eqn.params["start_indices"][0] == first and eqn.outvars[0].aval.shape[0] == 1


def without_first(level: Level, place: int) -> Edit:
    """The loop with its first step in front, and a concatenation of both for each stacked output that is read."""
    loop = as_loop(level.eqns[place])
    assert loop is not None
    n = loop.length
    first, rest = (n - 1, 0) if loop.reverse else (0, 1)
    parts = [Part(first, 1, 1, 0), Part(rest, n - 1, 1, 0)]
    split = Split(loop, Window(0, 1, n), {})
    carry, _, pieces = split.run(parts)
    results: dict[Var, Atom] = dict(zip(loop.finals, carry, strict=True))
    builder = Builder(loop.eqn)
    for y, piece in zip(loop.ys, pieces, strict=True):
        if level.readers(y):
            results[y] = in_order(builder, piece)
    kept = {v: x for v, x in results.items() if level.readers(v)}
    return Edit(place, frozenset({place}), [*split.eqns, *builder.eqns], kept, frozenset({place}))
