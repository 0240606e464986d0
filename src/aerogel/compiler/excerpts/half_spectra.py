"""Spectra of real numbers: of entry k and entry -k one is the conjugate of the other, and half of them is enough.

From a transform whose result is real, the entries that it needs are asked for equation by equation upwards, along the
last of the transformed axes, and found symmetric where they come from transforms of real numbers and from functions of
these that conjugation passes through.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis, Mapped, along_output
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..known.counters import counted
from ..known.picks import is_zeros
from ..level import Edit, Level
from ..program import Builder, is_var
from .excerpt import Excerpt, Writer
from .groups import Group

# f(conj(z)) is conj(f(z)), for whole arrays: these, of real numbers and complex ones.
SHAPING = "transpose reshape broadcast_in_dim squeeze slice concatenate pad copy name".split()
CONJUGATED = frozenset(
    (*SHAPING, *"mul add add_any sub neg conj div integer_pow square exp reduce_sum dot_general".split())
) | {"convert_element_type", "select_n", "abs", "real"}
EVEN = frozenset((*ELEMENTWISE, *SHAPING, "reduce_sum", "reduce_max", "reduce_min", "dot_general")) - {"imag"}
# Entries of a value that is computed from nothing, so as to look at it, and equations from a result upwards.
LARGEST_LOOKED_AT = 1 << 20
DEEPEST = 200

Dims = tuple[int | None, ...]  # where a value has the transformed axes, the last one being the one that is halved


@dataclass(frozen=True)
class _Spectrum:
    """What a transform with a real result needs: `roots` are transforms of real numbers, `between` lies between."""

    end: int
    roots: frozenset[int]
    between: frozenset[int]
    dims: dict[Var, Dims]

    @property
    def places(self) -> frozenset[int]:
        """All its equations."""
        return self.roots | self.between | {self.end}


def transform(eqn: JaxprEqn) -> tuple[int, ...] | None:
    """The lengths of a transform of complex numbers; None of another equation."""
    complex_ones = eqn.primitive.name == "fft" and eqn.params["fft_type"] in (lax.FftType.FFT, lax.FftType.IFFT)
    return tuple(eqn.params["fft_lengths"]) if complex_ones else None


# Measured (docs/reference/catalogue-order.md): below, and for odd lengths, transforms of real numbers are slower.
FEWEST = 1 << 16


def is_made_by_half(level: Level, eqn: JaxprEqn, start: int, end: int, dim: int) -> bool:
    """Whether places `start` to `end` along `dim` of a transform are in the half that one of real numbers makes."""
    lengths = transform(eqn)
    if not lengths or eqn.outvars[0].aval.size < FEWEST or lengths[-1] % 2:
        return False
    is_last = dim == eqn.outvars[0].aval.ndim - 1
    return is_last and 0 <= start < end <= lengths[-1] // 2 + 1 and is_real(level, eqn.invars[0])


def made_by_half(level: Level, builder: Builder, eqn: JaxprEqn) -> Atom:
    """The first half of the spectrum of real numbers, along the last axis."""
    return builder.call(_Transform(eqn).of_real, _real_part(level, builder, eqn.invars[0]))[0]


def half_spectra(level: Level) -> list[Group]:
    """Transforms with real results, together with those that share spectra, and the edits that make halves."""
    found = [
        s for k, eqn in enumerate(level.eqns) if transform(eqn) and (s := _Search(level, k).spectrum()) is not None
    ]
    while True:
        inside = frozenset().union(*(s.places for s in found))
        kept = [s for s in found if all(_read_inside(level, k, inside) for k in s.roots | s.between)]
        if len(kept) == len(found):
            break
        found = kept
    return [_group(level, together) for together in _sharing(found)]


@dataclass
class _Search:
    level: Level
    end: int
    dims: dict[Var, Dims] = field(default_factory=dict)
    roots: set[int] = field(default_factory=set)
    between: set[int] = field(default_factory=set)
    asymmetric: set[Var] = field(default_factory=set)

    def spectrum(self) -> _Spectrum | None:
        """What the transform at `end` needs, if its result is real and read as that."""
        eqn = self.level.eqns[self.end]
        self.lengths = transform(eqn) or ()
        (operand,), (out,) = eqn.invars, eqn.outvars
        last = tuple(range(out.aval.ndim - len(self.lengths), out.aval.ndim))
        if not is_read_as_real(self.level, out) or not self._symmetric(operand, last, 0) or not self.roots:
            return None
        return _Spectrum(self.end, frozenset(self.roots), frozenset(self.between), self.dims)

    def _symmetric(self, x: Atom, dims: Dims, depth: int) -> bool:
        if not is_var(x):
            return not np.any(np.imag(np.asarray(x.val)))
        if x in self.dims or x in self.asymmetric or depth > DEEPEST:
            return self.dims.get(x) == dims
        if x.aval.dtype.kind != "c" and all(d is None for d in dims):
            return True
        if self._comes_so(x, dims, depth) or _is_known_symmetric(self.level, x, dims):
            self.dims[x] = dims
            return True
        self.asymmetric.add(x)
        return False

    def _comes_so(self, x: Var, dims: Dims, depth: int) -> bool:
        """Whether a value is a transform of real numbers, or made of what is symmetric by what keeps that."""
        place = self.level.made_by.get(x)
        if place is None:
            return False
        eqn = self.level.eqns[place]
        if transform(eqn) == self.lengths and dims == tuple(range(x.aval.ndim - len(dims), x.aval.ndim)):
            if is_real(self.level, eqn.invars[0]):
                self.roots.add(place)
                return True
            return False
        before = _operands(eqn, dims, self.lengths) if _passes(self.level, eqn) else None
        if before is None:
            return False
        symmetric = all(self._symmetric(v, d, depth + 1) for v, d in zip(eqn.invars, before, strict=True))
        if symmetric and any(self.level.made_by.get(v) in (self.roots | self.between) for v in eqn.invars if is_var(v)):
            self.between.add(place)
        return symmetric


def _passes(level: Level, eqn: JaxprEqn) -> bool:
    """Whether conjugates of an equation's operands give the conjugate of its result."""
    if eqn.primitive.name == "complex":
        return is_zeros(level, eqn.invars[1])
    names = CONJUGATED if eqn.outvars and eqn.outvars[0].aval.dtype.kind == "c" else EVEN
    return len(eqn.outvars) == 1 and not eqn.effects and eqn.primitive.name in names


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


def _is_known_symmetric(level: Level, x: Var, dims: Dims) -> bool:
    """Whether a value that is computed from nothing but counters is symmetric: it is looked at."""
    if x.aval.size > LARGEST_LOOKED_AT:
        return False
    value = counted(level, x)
    if value is None:
        return False
    there = tuple(d for d in dims if d is not None)
    turned = np.roll(np.flip(value, there), 1, there)
    return bool(np.array_equal(value, np.conj(turned)))


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


def _read_inside(level: Level, place: int, inside: frozenset[int]) -> bool:
    return all(k in inside for v in level.eqns[place].outvars for k in level.readers(v))


def _sharing(found: Sequence[_Spectrum]) -> list[list[_Spectrum]]:
    """Those that share an equation, together."""
    groups: list[tuple[set[int], list[_Spectrum]]] = []
    for one in found:
        near = [g for g in groups if not g[0].isdisjoint(one.places)]
        groups = [g for g in groups if g not in near]
        groups.append((set(one.places).union(*(g[0] for g in near)), [*(s for g in near for s in g[1]), one]))
    return [together for _, together in groups]


def _group(level: Level, found: Sequence[_Spectrum]) -> Group:
    ends = {s.end for s in found}
    places = frozenset().union(*(s.places for s in found))
    dims = {v: d for s in found for v, d in s.dims.items()}
    *_, length = transform(level.eqns[found[0].end]) or (1,)
    builder = Builder(level.eqns[min(places)])
    writer, results = Writer(builder), dict[Var, Atom]()

    def part(dim: int) -> Excerpt:
        return Excerpt(Axis(dim), length, 0, length // 2 + 1)

    for place in sorted(places):
        eqn = level.eqns[place]
        (out,) = eqn.outvars
        if place in ends:
            last = out.aval.ndim - 1
            (real,) = builder.call(_Transform(eqn).half, writer.excerpt(eqn.invars[0], part(last)))
            results |= _read_as(level, builder, out, real)
        elif any(place in s.roots for s in found):
            (made,) = builder.call(_Transform(eqn).of_real, _real_part(level, builder, eqn.invars[0]))
            writer.made[out] = made, part(out.aval.ndim - 1)
        elif (dim := dims[out][-1]) is not None:
            wanted = part(dim)
            answer = along_output(eqn, {0: wanted.axis}, wanted.length)
            assert isinstance(answer, Mapped), "it was before"
            (made,) = writer.narrowed(eqn, answer, wanted)
            writer.made[out] = made, wanted
    gone = places | {level.made_by[v] for v in results}
    edit = Edit(max(gone), gone, builder.eqns, results, gone)
    read = [v for v in results if any(k not in gone for k in level.readers(v))]
    return Group(edit, tuple(level.eqns[k] for k in sorted(gone)), tuple(read))


def _real_part(level: Level, builder: Builder, x: Atom) -> Atom:
    """What a complex value was made from, or its real part: XLA would copy it."""
    maker = level.maker(x)
    if maker is not None and maker.primitive.name in ("convert_element_type", "complex"):
        real = maker.invars[0]
        if real.aval.dtype == np.zeros((), x.aval.dtype).real.dtype and real.aval.shape == x.aval.shape:
            return real
    return builder.call(lax.real, x)[0]


def _read_as(level: Level, builder: Builder, x: Var, real: Atom) -> dict[Var, Atom]:
    """What stands for a result whose imaginary part is zero, and for its real part."""
    results: dict[Var, Atom] = {}
    for k in level.readers(x):
        (out,) = level.eqns[k].outvars
        if out.aval.dtype == real.aval.dtype and out.aval.shape == real.aval.shape:
            results[out] = builder.as_weak_as(out, real)
    (results[x],) = builder.call(lambda v, dtype=x.aval.dtype: lax.convert_element_type(v, dtype), real)
    return results


@dataclass(frozen=True)
class _Transform:
    """A transform by its halves: of the two kinds one is the conjugate of the other, up to the number of entries."""

    eqn: JaxprEqn

    def of_real(self, x: Any) -> Any:
        """The first half of the spectrum."""
        lengths = self.eqn.params["fft_lengths"]
        if self.eqn.params["fft_type"] == lax.FftType.FFT:
            return lax.fft(x, lax.FftType.RFFT, lengths)
        return lax.conj(lax.fft(x * np.asarray(1 / np.prod(lengths), x.dtype), lax.FftType.RFFT, lengths))

    def half(self, z: Any) -> Any:
        """The real result, of the first half of its operand."""
        lengths = self.eqn.params["fft_lengths"]
        if self.eqn.params["fft_type"] == lax.FftType.IFFT:
            return lax.fft(z, lax.FftType.IRFFT, lengths)
        x = lax.fft(lax.conj(z), lax.FftType.IRFFT, lengths)
        return x * np.asarray(np.prod(lengths), x.dtype)
