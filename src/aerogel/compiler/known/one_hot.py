"""One-hot rows before they are repeated: under `vmap` a mask stands beside each of the numbers that it masks."""

from collections.abc import Sequence
from typing import TypeVar

from aerogel._jax import Atom

from ..level import Level
from ..program import is_var
from .records import Facts, OneHot, the

T = TypeVar("T")


def not_repeated(
    level: Level, facts: Facts, atom: Atom, picked: OneHot, dims: Sequence[tuple[T, ...]]
) -> tuple[Atom, OneHot, tuple[tuple[T, ...], ...]]:
    """A smaller value that a one-hot one repeats along other dimensions, if there is one.

    Args:
        atom: the value, of which `picked` is known.
        dims: what is said of each of its dimensions.

    Returns:
        That value, of another type perhaps, what is known of it, and what is said of its dimensions: nothing where it
        has one place and is repeated.
    """
    found = atom, picked, tuple(dims)
    while is_var(atom) and atom in level.made_by:
        eqn, whole = level.eqns[level.made_by[atom]], atom.aval.shape
        if eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type") or not eqn.invars:
            break
        atom = eqn.invars[0]
        known = the(OneHot, facts.of(atom))
        if known is None:
            break
        if eqn.primitive.name == "broadcast_in_dim":
            own, at = atom.aval.shape, eqn.params["broadcast_dimensions"]
            dims = tuple(dims[d] if n == whole[d] else () for n, d in zip(own, at, strict=True))
        if atom.aval.shape != found[0].aval.shape:
            found = atom, known, tuple(dims)
    return found
