"""A network as it is read from a level, from its result down: what equations that multiply, move and add do to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aerogel._jax import Atom, JaxprEqn

from ..known.one_hot import not_repeated
from ..known.records import Constant, Diagonal, Facts, Identity, OneHot, Shifted, the
from ..known.structures import is_no_pad
from ..level import Level
from ..program import is_var
from .diagonals import Dims, gathered_diagonal, scattered_diagonal
from .network import Factor, Labels, Network, NotOneNetwork, Picking

# Read by several, these are taken into each network that reads them: they are no work, or XLA repeats it anyway.
VIEWS = frozenset(
    "transpose broadcast_in_dim reshape squeeze expand_dims pad tile select_n scatter scatter-add".split()
)
# Not float16: where a scale stands in a product decides there whether it overflows.
FLOATS = frozenset("bfloat16 float32 float64 complex64 complex128".split())
SUMS = frozenset(("dot_general", "reduce_sum"))
MOST_FACTORS = 20
DEEPEST = 100


def is_plain(eqn: JaxprEqn) -> bool:
    """Whether an equation takes and makes values of one type, and asks for no layout over devices."""
    dtype = eqn.outvars[0].aval.dtype
    same = all(getattr(x.aval, "dtype", None) == dtype for x in eqn.invars)
    return same and not eqn.effects and eqn.params.get("out_sharding") is None and eqn.params.get("sharding") is None


@dataclass
class Reader:
    """Takes equations into one network, from the result down."""

    level: Level
    facts: Facts
    network: Network
    dtype: object
    closed: frozenset[int]
    opened: set[int]  # takes the places of the equations that were not closed, and could be taken in
    terms: Sequence[int] | None = None  # of each known sum that is met, which term is taken; None to leave them
    sums: dict[int, list[Dims]] = field(default_factory=dict)  # how the sums at these places are labelled
    twice: frozenset[int] = frozenset()  # places of the sums that are multiplied by themselves

    def read(self, atom: Atom, dims: Dims, depth: int) -> None:
        """Multiplies the network by a value whose dimensions are labelled `dims`."""
        if self._is_known(atom, dims):
            self.network.is_known = True
        else:
            for diagonal in (r for r in self.facts.of(atom) if isinstance(r, Diagonal)):
                self.network.is_finite = True
                self.network.join(dims[diagonal.a], dims[diagonal.b])
            place = self.level.made_by.get(atom, -1) if is_var(atom) else -1
            if place < 0 or not self._is_open(place, depth) or not self.take(place, dims, depth + 1):
                self.network.multiply(Factor(atom, dims))

    def _is_known(self, atom: Atom, dims: Dims) -> bool:
        """Multiplies by a value that facts describe; whether they do."""
        known = self.facts.of(atom)
        if not known:
            return False
        constant, identity, picked = the(Constant, known), the(Identity, known), the(OneHot, known)
        shifted = self.shifted(atom)
        if constant is not None and not isinstance(constant.value, complex) and np.isfinite(constant.value):
            self.network.coefficient *= float(constant.value)
        elif identity is not None:
            self.network.is_finite = True
            self.network.join(dims[identity.a], dims[identity.b])
        elif shifted is not None and self.terms is not None:
            self._take_term(shifted, dims)
        elif picked is not None:
            atom, picked, dims = not_repeated(self.level, self.facts, atom, picked, dims)
            at = tuple(dims[d] if d >= 0 else () for d in picked.along)
            self.network.multiply(Factor(atom, dims, Picking(picked.index, at, dims[picked.dim])))
        else:
            return False
        return True

    def _take_term(self, shifted: Shifted, dims: Dims) -> None:
        """Multiplies by one of the two that a value is the sum of: an identity, or a number everywhere."""
        assert self.terms is not None
        met = self.network.sums
        is_rest = met < len(self.terms) and self.terms[met]
        self.network.sums += 1
        self.network.is_finite = True
        self.network.coefficient *= shifted.rest if is_rest else shifted.scale
        if not is_rest:
            self.network.join(dims[shifted.a], dims[shifted.b])

    def keeps_centred(self, atom: Atom, free: Mapping[int, Labels]) -> bool:
        """Whether a product with an operand, if that subtracts means, leaves the differences in the result.

        Differences that are multiplied and summed up again are made first: multiplied out, what is left of large sums
        has few digits, `sum((x - mean(x)) * (y - mean(y)))` as `sum(x * y) - n * mean(x) * mean(y)`.
        """
        shifted = self.shifted(atom)
        kept = [free[d] for d in (shifted.a, shifted.b) if d in free] if shifted else []
        resolved, result = self.network.resolved, [k for labels in self.network.out for k in labels]
        return len(kept) != 1 or not {*resolved(kept[0])}.isdisjoint(resolved([*result, *self.network.centred]))

    def shifted(self, atom: Atom) -> Shifted | None:
        """That an operand is an identity and a number everywhere, neither of them zero."""
        found = the(Shifted, self.facts.of(atom))
        return found if found is not None and found.scale and found.rest else None

    def _is_open(self, place: int, depth: int) -> bool:
        eqn = self.level.eqns[place]
        if place in self.closed or depth > DEEPEST or len(self.network.factors) >= MOST_FACTORS:
            return False
        if eqn.primitive.name not in TAKE or len(eqn.outvars) != 1 or eqn.outvars[0].aval.dtype != self.dtype:
            return False
        readers = self.level.readers(eqn.outvars[0])
        alone = (len(readers) == 1 and readers[0] >= 0) or eqn.primitive.name in VIEWS
        if alone or all(k >= 0 and self.level.eqns[k].primitive.name in TAKE for k in readers):
            self.opened.add(place)
            return True
        return False

    def take(self, place: int, dims: Dims, depth: int) -> bool:
        """Takes an equation in, its result's dimensions labelled `dims`; whether it could."""
        eqn = self.level.eqns[place]
        if _adds_up(eqn):
            self._note_sum(place, dims)
        taken = TAKE[eqn.primitive.name](self, eqn, dims, depth)
        if taken:
            self.network.places.add(place)
        return taken

    def _note_sum(self, place: int, dims: Dims) -> None:
        """Notes that a sum is met once more along a dimension along which it was met before, if it is."""
        before = self.sums.setdefault(place, [])
        resolved = self.network.resolved
        if any(set(resolved(a)) & set(resolved(b)) for other in before for a, b in zip(other, dims, strict=True)):
            self.twice |= {place}
        before.append(dims)

    def read_stretched(self, atom: Atom, dims: Dims, depth: int) -> None:
        """An operand of an entrywise equation: scalars and dimensions of size 1 are repeated."""
        shape = atom.aval.shape
        self.read(atom, tuple(() if n == 1 else dim for n, dim in zip(shape, dims, strict=False)), depth)


def _adds_up(eqn: JaxprEqn) -> bool:
    """Whether an equation is a sum of several products or numbers."""
    shape, axes = eqn.invars[0].aval.shape, eqn.params.get("axes", ())
    if eqn.primitive.name == "dot_general":
        axes = eqn.params["dimension_numbers"][0][0]
    return eqn.primitive.name in SUMS and any(shape[d] > 1 for d in axes)


Take = Callable[[Reader, JaxprEqn, Dims, int], bool]


def _transpose(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    order = list(eqn.params["permutation"])
    reader.read(eqn.invars[0], tuple(dims[order.index(d)] for d in range(len(order))), depth)
    return True


def _broadcast(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    x = eqn.invars[0]
    to = eqn.params["broadcast_dimensions"]
    if eqn.params.get("sharding") is not None:
        return False
    reader.read(x, tuple(() if n == 1 else dims[int(d)] for n, d in zip(x.aval.shape, to, strict=True)), depth)
    return True


def _reshape(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    if eqn.params.get("dimensions") is not None or eqn.params.get("sharding") is not None:
        return False
    try:
        labelled = reader.network.cut([one for dim in dims for one in dim], eqn.invars[0].aval.shape)
    except NotOneNetwork:
        return False
    reader.read(eqn.invars[0], tuple(labelled), depth)
    return True


def _pad(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    if not is_no_pad(eqn):
        return False
    reader.read(eqn.invars[0], dims, depth)
    return True


def _tile(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    shape, reps = eqn.invars[0].aval.shape, eqn.params["reps"]
    try:
        labelled = reader.network.cut(
            [one for dim in dims for one in dim], [k for pair in zip(reps, shape, strict=True) for k in pair]
        )
    except NotOneNetwork:
        return False
    reader.read(eqn.invars[0], tuple(labelled[1::2]), depth)
    return True


def _mul(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    if not is_plain(eqn):
        return False
    counts = [len(reader.network.factors)]
    for x in eqn.invars:
        reader.read_stretched(x, dims, depth)
        counts.append(len(reader.network.factors))
    # A number, ones or an identity is no operand that a matrix product would round.
    multiplies = all(x.aval.size > 1 for x in eqn.invars)
    reader.network.multiplies |= multiplies
    reader.network.joins |= multiplies and counts[0] < counts[1] < counts[2]
    return True


def _square(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    if eqn.params.get("y", 2) != 2:
        return False
    reader.network.joins = reader.network.multiplies = True
    for _ in range(2):
        reader.read(eqn.invars[0], dims, depth)
    return True


def _neg(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    reader.network.coefficient *= -1
    reader.read(eqn.invars[0], dims, depth)
    return True


def _div(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    constant = the(Constant, reader.facts.of(eqn.invars[1]))
    if constant is None or isinstance(constant.value, complex) or not constant.value:
        return False
    reader.network.coefficient /= float(constant.value)
    reader.read_stretched(eqn.invars[0], dims, depth)
    return True


def dot(
    reader: Reader,
    eqn: JaxprEqn,
    dims: Dims,
    depth: int,
    operands: Sequence[Atom] | None = None,
    windows: Mapping[int, tuple[int, int, int] | None] | None = None,
) -> bool:
    """A product; of other `operands` than its own, and of windows of them, where these are given."""
    precision = eqn.params.get("precision")
    if type(precision) is tuple and len(set(precision)) == 1:
        precision = precision[0]
    if not is_plain(eqn) or isinstance(precision, tuple):
        return False
    contract, batch = eqn.params["dimension_numbers"]
    operands = operands or eqn.invars
    shapes = [x.aval.shape for x in operands]
    start = len(batch[0])
    for side, x in enumerate(operands):
        free = [d for d in range(len(shapes[side])) if d not in contract[side] and d not in batch[side]]
        if not reader.keeps_centred(x, dict(zip(free, dims[start:], strict=False))):
            return False
        start += len(free)
    reader.network.precisions.append(precision)
    reader.network.multiplies = True
    inner = [
        reader.network.sum_over(min(shapes[0][a], shapes[1][b])) for a, b in zip(contract[0], contract[1], strict=True)
    ]
    if any(reader.shifted(x) for x in operands):
        reader.network.centred += (k for labels in inner for k in labels)
    start = len(batch[0])
    for side, x in enumerate(operands):
        mine: dict[int, Labels] = dict(zip(contract[side], inner, strict=True))
        mine |= zip(batch[side], dims, strict=False)
        free = [d for d in range(len(x.aval.shape)) if d not in mine]
        mine |= zip(free, dims[start:], strict=False)
        start += len(free)
        labelled = tuple(mine[d] for d in range(len(x.aval.shape)))
        window = (windows or {}).get(side)
        if window is None:
            reader.read(x, labelled, depth)
        else:
            reader.network.multiply(Factor(x, labelled, window=window))
    return True


def _sum(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    kept = iter(dims)
    axes = {int(d) for d in eqn.params["axes"]}
    shape = eqn.invars[0].aval.shape
    labelled = [reader.network.sum_over(n) if d in axes else next(kept) for d, n in enumerate(shape)]
    reader.read(eqn.invars[0], tuple(labelled), depth)
    return True


def _select(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    """`where(mask, x, 0)` with a mask of an identity or of one-hot rows."""
    which, *cases = eqn.invars
    zero = the(Constant, reader.facts.of(cases[0]))
    known = reader.facts.of(which)
    picks = the(OneHot, known) is not None
    if len(cases) != 2 or zero is None or zero.value != 0 or not (picks or the(Identity, known)):
        return False
    if len(which.aval.shape) != len(dims):
        return False
    reader.network.is_finite = True
    reader.network.multiplies |= picks
    reader.read(which, dims, depth)
    if picks:
        reader.network.factors[-1] = replace(reader.network.factors[-1], is_mask=True)
    reader.read_stretched(cases[1], dims, depth)
    return True


def _gather(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    labelled = gathered_diagonal(eqn, reader.facts, dims)
    if labelled is None:
        return False
    reader.read(eqn.invars[0], labelled, depth)
    return True


def _scatter(reader: Reader, eqn: JaxprEqn, dims: Dims, depth: int) -> bool:
    found = scattered_diagonal(eqn, reader.facts, dims)
    if found is None:
        return False
    labelled, (first, *others) = found
    for one in others:
        reader.network.join(first, one)
    reader.network.is_finite = True
    reader.read(eqn.invars[2], labelled, depth)
    return True


TAKE: dict[str, Take] = {
    "dot_general": dot,
    "reduce_sum": _sum,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "pad": _pad,
    "tile": _tile,
    "mul": _mul,
    "integer_pow": _square,
    "square": _square,
    "neg": _neg,
    "div": _div,
    "select_n": _select,
    "gather": _gather,
    "scatter-add": _scatter,
    "scatter": _scatter,
}
