"""Facts by the names that users know them by, and as records of a value's dimensions."""

from collections.abc import Sequence
from typing import Any

from .records import (
    Constant,
    Diagonal,
    Finite,
    Identity,
    Known,
    Kronecker,
    NonNegative,
    OneHot,
    Positive,
    Record,
    Repeated,
    Said,
    Sorted,
    Symmetric,
    closed,
    the,
)

_ENTRYWISE: dict[str, Record] = {
    "finite": Finite(),
    "non_negative": NonNegative(),
    "positive": Positive(),
    "zero": Constant(0),
    "ones": Constant(1),
}
_OF_MATRICES = {"diagonal": Diagonal, "identity": Identity, "kronecker": Kronecker, "symmetric": Symmetric}
_SAID = frozenset(("lower_triangular", "orthogonal", "spd", "upper_triangular"))
_OTHER_SIDE = {"lower_triangular": "upper_triangular", "upper_triangular": "lower_triangular"}


def records_of(facts: frozenset[str], aval: Any) -> Known:
    """What the facts say of a value, or of the matrices in its last two dimensions, as records."""
    a, b = len(aval.shape) - 2, len(aval.shape) - 1
    found: set[Record] = set()
    for fact in facts:
        if fact in _ENTRYWISE:
            found.add(_ENTRYWISE[fact])
        elif fact == "sorted":
            found.add(Sorted(b))
        elif fact in _OF_MATRICES:
            found.add(_OF_MATRICES[fact](a, b))
        elif fact in _SAID:
            found.add(Said(fact, a, b))
    return closed(frozenset(found), aval)


def words_of(known: Known, dims: Sequence[int], shape: Sequence[int]) -> frozenset[str]:
    """The facts that records say of a value of that shape, as seen by one example, which has the dimensions `dims`."""
    found = {fact for fact, record in _ENTRYWISE.items() if record in known}
    constant = the(Constant, known)
    if constant is not None:  # 1.0 and True are 1
        found |= {fact for fact, value in (("zero", 0), ("ones", 1)) if constant.value == value}
    if any(Repeated(d) in known and shape[d] > 1 for d in dims):
        found.add("broadcast")
    if dims:
        last = dims[-1]
        found |= {"sorted"} if Sorted(last) in known else set()
        found |= {"one_hot"} if any(isinstance(r, OneHot) and r.dim == last for r in known) else set()
    if len(dims) > 1:
        a, b = dims[-2:]
        found |= {fact for fact, kind in _OF_MATRICES.items() if kind(*sorted((a, b))) in known}
        for r in known:
            if isinstance(r, Said) and {r.a, r.b} == {a, b}:
                found.add(r.fact if r.a == a else _OTHER_SIDE.get(r.fact, r.fact))
    return frozenset(found)
