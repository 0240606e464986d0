"""Which values are spectra of real numbers: entry -k is the conjugate of entry k, or less it, along transformed axes.

From a transform whose result is read as real, what it needs is asked for equation by equation upwards. Transforms of
real numbers are such spectra, and so is what is made of them by functions that conjugation passes through.

What comes from elsewhere and is no such spectrum may stand where the result depends on it linearly, as a factor say:
the real part depends on the half of it alone that is symmetric, `(v[k] + conj(v[-k])) / 2`. For `1j * fftfreq(n)` that
is the same less the entry at n / 2. It is made for the whole of the value before it is cut.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis, Mapped, along_output
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..known.counters import Counters
from ..known.picks import is_zeros
from ..level import Level
from ..program import is_var
from ..record import record

# f(conj(z)) is conj(f(z)), for whole arrays: these, of real numbers and complex ones.
SHAPING = "transpose reshape broadcast_in_dim squeeze slice concatenate pad copy name".split()
CONJUGATED = frozenset(
    (*SHAPING, *"mul add add_any sub neg conj div integer_pow square exp reduce_sum dot_general".split())
) | {"convert_element_type", "select_n", "abs", "real", "complex"}
EVEN = frozenset((*ELEMENTWISE, *SHAPING, "reduce_sum", "reduce_max", "reduce_min", "dot_general")) - {"imag"}
# Linear in all operands together, and in each one for itself.
ADDITIVE = frozenset((*SHAPING, *"add add_any sub neg conj real reduce_sum complex convert_element_type".split()))
PRODUCTS = frozenset(("mul", "dot_general"))
# Entries of a value that is computed from nothing, so as to look at it, and equations from a result upwards.
LARGEST_LOOKED_AT = 1 << 20
DEEPEST = 200

Dims = tuple[int | None, ...]  # where a value has the transformed axes, the last one being the one that is halved


@record
class Turned:
    """A value of which only the symmetric half counts: that of `source`, and what the equations of `chain` make of it.

    Attributes:
        source, dims, sign: what is turned, where it has the transformed axes, and how (`symmetric_half`).
        chain: places of equations that arrange, repeat or scale it, first to last.
    """

    source: Var
    dims: Dims
    sign: int
    chain: tuple[int, ...] = ()


@record
class Spectrum:
    """What a transform with a real result needs.

    Attributes:
        end: the transform.
        roots, between: transforms of real numbers, and the equations from these to the end.
        dims: where the values that these make and read have the transformed axes.
        signs: 1 for those whose entry -k is the conjugate of entry k, -1 where it is less the conjugate.
        turned: those that are read and are not symmetric.
    """

    end: int
    roots: frozenset[int]
    between: frozenset[int]
    dims: dict[Var, Dims]
    signs: dict[Var, int]
    turned: dict[Var, Turned]

    @property
    def places(self) -> frozenset[int]:
        """All its equations."""
        return self.roots | self.between | {self.end}

    def agrees_with(self, other: "Spectrum") -> bool:
        """Whether what both use is the same in both."""
        shared = self.dims.keys() & other.dims.keys()
        return all(
            (self.dims[v], self.signs[v], self.turned.get(v)) == (other.dims[v], other.signs[v], other.turned.get(v))
            for v in shared
        )


def transform(eqn: JaxprEqn) -> tuple[int, ...] | None:
    """The lengths of a transform of complex numbers; None of another equation."""
    complex_ones = eqn.primitive.name == "fft" and eqn.params["fft_type"] in (lax.FftType.FFT, lax.FftType.IFFT)
    return tuple(eqn.params["fft_lengths"]) if complex_ones else None


def spectra(level: Level) -> list[Spectrum]:
    """What each transform needs whose result is read as real, and comes from transforms of real numbers."""
    ends = [k for k, eqn in enumerate(level.eqns) if transform(eqn) and is_read_as_real(level, eqn.outvars[0])]
    if not ends:
        return []
    behind, counters = _behind_transforms(level), Counters(level)
    found = (_Search(level, k, behind, counters).spectrum() for k in ends)
    return [s for s in found if s is not None]


def _behind_transforms(level: Level) -> Set[Var]:
    found = set[Var]()
    for eqn in level.eqns:
        if eqn.primitive.name == "fft" or any(x in found for x in eqn.invars if is_var(x)):
            found.update(eqn.outvars)
    return found


@dataclass
class _Search:
    level: Level
    end: int
    behind: Set[Var]  # what depends on any transform
    counters: Counters
    dims: dict[Var, Dims] = field(default_factory=dict)
    signs: dict[Var, int] = field(default_factory=dict)
    roots: set[int] = field(default_factory=set)
    between: set[int] = field(default_factory=set)
    turned: set[Var] = field(default_factory=set)
    loose: set[Var] = field(default_factory=set)  # what is turned, or made of that
    asymmetric: set[tuple[Var, int, bool]] = field(default_factory=set)

    def spectrum(self) -> Spectrum | None:
        """What the transform at `end` needs; None if it does not come from transforms of real numbers alone."""
        eqn = self.level.eqns[self.end]
        self.lengths = transform(eqn) or ()
        (operand,), (out,) = eqn.invars, eqn.outvars
        last = tuple(range(out.aval.ndim - len(self.lengths), out.aval.ndim))
        if not self._symmetric(operand, last, 0, 1, True):
            return None
        places, reads = self._leading_to(operand)
        if not places & self.roots:
            return None
        turned = {x: self._turned(x) for x in reads if x in self.loose and x not in self.behind}
        dims = {x: self.dims[x] for x in reads if x in self.dims}
        signs = {x: self.signs[x] for x in dims}
        roots, between = (frozenset(places & part) for part in (self.roots, self.between))
        return Spectrum(self.end, roots, between, dims, signs, turned)

    def _leading_to(self, operand: Atom) -> tuple[set[int], set[Var]]:
        """The equations that the end needs, without what was looked at in vain, and what these make and read."""
        places, reads, stack = set[int](), set[Var](), [operand]
        while stack:
            x = stack.pop()
            if is_var(x) and x not in reads:
                reads.add(x)
                place = self.level.made_by.get(x)
                if place in self.roots or place in self.between:
                    places.add(place)
                    stack += self.level.eqns[place].invars if place in self.between else []
        return places, reads

    def _turned(self, x: Var) -> Turned:
        chain: list[int] = []
        while x not in self.turned:
            chain.insert(0, self.level.made_by[x])
            (x,) = (v for v in self.level.eqns[chain[0]].invars if is_var(v))
        return Turned(x, self.dims[x], self.signs[x], tuple(chain))

    def _symmetric(self, x: Atom, dims: Dims, depth: int, sign: int, linear: bool) -> bool:
        """Whether a value is symmetric, with a sign.

        Args:
            linear: whether all that is asked for is linear in it. Its symmetric half will do then.
        """
        if not is_var(x):
            return not np.any((np.imag if sign > 0 else np.real)(np.asarray(x.val)))
        if x in self.dims:
            return (self.dims[x], self.signs[x]) == (dims, sign) and (linear or x not in self.loose)
        key = x, sign, linear
        if key in self.asymmetric or depth > DEEPEST:
            return False
        if x.aval.dtype.kind != "c" and all(d is None for d in dims):
            return sign > 0
        if self._is_found(x, dims, depth, sign, linear):
            self.dims[x], self.signs[x] = dims, sign
            return True
        self.asymmetric.add(key)
        return False

    def _is_found(self, x: Var, dims: Dims, depth: int, sign: int, linear: bool) -> bool:
        if x in self.behind:
            return self._comes_so(x, dims, depth, sign, linear)
        if self._comes_so(x, dims, depth, sign, False) or self._is_known(x, dims, sign):
            return True
        if not linear or x.aval.dtype.kind not in "fc":
            return False
        eqn = self.level.maker(x)  # repeated, say: what it repeats is turned
        if eqn is not None and _is_linear_in_one(eqn) and self._comes_so(x, dims, depth, sign, True):
            return True
        self.turned.add(x)
        self.loose.add(x)
        return True

    def _comes_so(self, x: Var, dims: Dims, depth: int, sign: int, linear: bool) -> bool:
        """Whether a value is a transform of real numbers, or made of what is symmetric by what keeps that."""
        place = self.level.made_by.get(x)
        if place is None:
            return False
        eqn = self.level.eqns[place]
        if transform(eqn) == self.lengths and dims == tuple(range(x.aval.ndim - len(dims), x.aval.ndim)):
            if sign > 0 and is_real(self.level, eqn.invars[0]):
                self.roots.add(place)
                return True
            return False
        before = _operands(eqn, dims, self.lengths) if _passes(eqn) else None
        if before is None or not any(self._are(eqn, before, depth, one, linear) for one in _signs(eqn, sign)):
            return False
        made_of = [v for v in eqn.invars if is_var(v)]
        if self.loose.intersection(made_of):
            self.loose.add(x)
        if x in self.behind and any(self.level.made_by.get(v) in (self.roots | self.between) for v in made_of):
            self.between.add(place)
        return True

    def _are(self, eqn: JaxprEqn, before: Sequence[Dims], depth: int, signs: Sequence[int], linear: bool) -> bool:
        """Whether all operands are symmetric with these signs."""
        name, is_free = eqn.primitive.name, linear
        # What is turned has either sign: it is asked last.
        for k in sorted(range(len(signs)), key=lambda k: is_var(eqn.invars[k]) and eqn.invars[k] not in self.behind):
            v, dims, sign = eqn.invars[k], before[k], signs[k]
            counts = name in PRODUCTS or name in ADDITIVE or (name, k) == ("div", 0) or (name == "select_n" and k > 0)
            if not self._symmetric(v, dims, depth + 1, sign, is_free and counts):
                return False
            if name in PRODUCTS and is_var(v) and v in self.loose:  # of a product, in one factor
                is_free = False
        return True

    def _is_known(self, x: Var, dims: Dims, sign: int) -> bool:
        """Whether a value that is computed from nothing but counters is symmetric: it is looked at."""
        if x.aval.size > LARGEST_LOOKED_AT:
            return False
        found = self.counters.of(x)
        if found is None:
            return False
        value, there = np.broadcast_to(found, x.aval.shape), tuple(d for d in dims if d is not None)
        turned = np.conj(np.roll(np.flip(value, there), 1, there))
        return bool(np.array_equal(value, turned if sign > 0 else np.negative(turned)))


def _is_linear_in_one(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ADDITIVE | PRODUCTS and sum(map(is_var, eqn.invars)) == 1


def _passes(eqn: JaxprEqn) -> bool:
    """Whether conjugates of an equation's operands give the conjugate of its result."""
    names = CONJUGATED if eqn.outvars and eqn.outvars[0].aval.dtype.kind == "c" else EVEN
    return len(eqn.outvars) == 1 and not eqn.effects and eqn.primitive.name in names


def _signs(eqn: JaxprEqn, sign: int) -> list[tuple[int, ...]]:
    """The signs of operands with which a result has `sign`."""
    name, n = eqn.primitive.name, len(eqn.invars)
    if name in PRODUCTS:
        return [(1, sign), (-1, -sign)]
    if name == "div":
        return [(sign, 1), (-sign, -1)]
    if name == "complex":
        return [(sign, -sign)]
    if name == "select_n":
        return [(1, *(sign,) * (n - 1))]
    return [(sign,) * n] if sign > 0 or name in ADDITIVE else []


def _operands(eqn: JaxprEqn, dims: Dims, lengths: Sequence[int]) -> list[Dims] | None:
    """Where the operands have the axes; None where an equation is not the same for each of their indices."""
    found: list[list[int | None]] = [[] for _ in eqn.invars]
    for dim, length in zip(dims, lengths, strict=True):
        answer = None if dim is None else along_output(eqn, {0: Axis(dim)}, length)
        if dim is not None and (not isinstance(answer, Mapped) or answer.uses_start):
            return None
        ins = answer.ins if isinstance(answer, Mapped) else (None,) * len(found)
        for places, axis in zip(found, ins, strict=True):
            if axis is not None and not axis.is_plain:
                return None
            places.append(None if axis is None else axis.dim)
    return [tuple(places) for places in found]


def is_real(level: Level, x: Atom) -> bool:
    """Whether a complex value was made from real numbers."""
    if not is_var(x):
        return not np.any(np.imag(np.asarray(x.val)))
    if x.aval.dtype.kind != "c":
        return True
    eqn = level.maker(x)
    if eqn is None:
        return False
    if eqn.primitive.name == "complex":
        return is_zeros(level, eqn.invars[1])
    return eqn.primitive.name in CONJUGATED and all(is_real(level, v) for v in eqn.invars)


def is_read_as_real(level: Level, x: Var) -> bool:
    """Whether nothing but the real part of a value is read."""
    return all(k >= 0 and _reads_real(level, level.eqns[k]) for k in level.readers(x))


def _reads_real(level: Level, eqn: JaxprEqn) -> bool:
    if eqn.primitive.name in ("real", "convert_element_type"):
        return eqn.outvars[0].aval.dtype.kind == "f"
    return eqn.primitive.name in SHAPING and is_read_as_real(level, eqn.outvars[0])


def symmetric_half(x: Any, dims: Dims, sign: int) -> Any:
    """The half of a value that is symmetric, with a sign: `(x[k] + conj(x[-k])) / 2`."""
    other = lax.conj(x) if np.dtype(x.dtype).kind == "c" else x
    for d in dims:
        if d is not None and x.shape[d] > 1:
            first, rest = lax.slice_in_dim(other, 0, 1, axis=d), lax.slice_in_dim(other, 1, None, axis=d)
            other = lax.concatenate([first, lax.rev(rest, (d,))], d)
    one, other = (lax.mul(v, lax.full_like(v, 0.5)) for v in (x, other))
    return one + other if sign > 0 else one - other
