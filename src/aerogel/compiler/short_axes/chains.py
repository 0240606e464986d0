"""Reductions at the end of a chain of products: the classes that a network tells apart."""

from aerogel._jax import Atom, JaxprEqn, Var

from ..fusion.once import CALLS
from ..level import Level
from ..program import inner_jaxprs, is_var
from ..windows.components import FUSED, MOST_EQUATIONS

# Times that what a product reads is larger than what is reduced. Read entry by entry, a softmax of 3 classes behind a
# layer of 64 took 1.1 to 1.9 of plain JAX's time (20,000 rows; with a `tanh` 0.8 to 1.1), for 5 MB, of 4 classes 1.3;
# behind one of 8, or of none, 0.3 to 0.5.
WIDER = 8


def ends_a_chain(level: Level, reduced: Atom) -> bool:
    """Whether a product makes what is reduced of rows much longer, which are computed entry by entry for it alone.

    XLA's CPU library takes such a chain as one call, however many products it has, and holds some rows at a time. What
    a gradient or another result reads is in memory anyway.
    """
    waiting, seen = [reduced], set[Var]()
    while waiting and len(seen) <= MOST_EQUATIONS:
        x = waiting.pop()
        maker = level.maker(x)
        if maker is None or not is_var(x) or x in seen:
            continue
        seen.add(x)
        if maker.primitive.name == "dot_general":
            return any(_is_for_it_alone(level, y) and y.aval.size >= WIDER * x.aval.size for y in maker.invars)
        if maker.primitive.name in FUSED:
            waiting += [y for y in maker.invars if y.aval.size == x.aval.size]
    return False


def _is_for_it_alone(level: Level, x: Atom) -> bool:
    maker = level.maker(x)
    if maker is None or not is_var(x) or len(level.readers(x)) != 1 or -1 in level.readers(x):
        return False
    return maker.primitive.name == "dot_general" or _is_entrywise(maker)


def _is_entrywise(eqn: JaxprEqn) -> bool:
    """Whether it is, or calls what is: `jax.nn.relu` has a derivative of its own."""
    if eqn.primitive.name not in CALLS:
        return eqn.primitive.name in FUSED
    return all(_is_entrywise(one) for inner in inner_jaxprs(eqn) for one in inner.eqns)
