"""Spectra of real numbers: of entry k and entry -k one is the conjugate of the other, and half of them is enough.

`conjugate_symmetry` finds them, from the transforms upwards whose results are read as real numbers.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis, Mapped, along_output
from ..level import Edit, Level
from ..program import Builder, copy_equation, substitute
from ..record import record
from .conjugate_symmetry import Spectrum, is_real, spectra, symmetric_half, transform
from .excerpt import Excerpt, Writer
from .groups import Group

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
    found = spectra(level)
    while True:
        inside = frozenset().union(*(s.places for s in found))
        kept = [s for s in found if all(_read_inside(level, k, inside) for k in s.roots | s.between)]
        if len(kept) == len(found):
            break
        found = kept
    groups = _sharing(found)
    return [_group(level, these) for these in groups if all(a.agrees_with(b) for a, b in combinations(these, 2))]


def _read_inside(level: Level, place: int, inside: frozenset[int]) -> bool:
    return all(k in inside for v in level.eqns[place].outvars for k in level.readers(v))


def _sharing(found: Sequence[Spectrum]) -> list[list[Spectrum]]:
    """Those that share an equation, together."""
    groups: list[tuple[set[int], list[Spectrum]]] = []
    for one in found:
        near = [g for g in groups if not g[0].isdisjoint(one.places)]
        groups = [g for g in groups if g not in near]
        groups.append((set(one.places).union(*(g[0] for g in near)), [*(s for g in near for s in g[1]), one]))
    return [together for _, together in groups]


def _group(level: Level, found: Sequence[Spectrum]) -> Group:
    ends = {s.end for s in found}
    places = frozenset().union(*(s.places for s in found))
    dims = {v: d for s in found for v, d in s.dims.items()}
    *_, length = transform(level.eqns[found[0].end]) or (1,)
    builder = Builder(level.eqns[min(places)])
    writer, results = Writer(builder), dict[Var, Atom]()

    def part(dim: int) -> Excerpt:
        return Excerpt(Axis(dim), length, 0, length // 2 + 1)

    env = _turned(level, builder, found)
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
            eqn = eqn.replace(invars=[substitute(x, env) for x in eqn.invars])
            (made,) = writer.narrowed(eqn, answer, wanted)
            writer.made[out] = made, wanted
    gone = places | {level.made_by[v] for v in results}
    edit = Edit(max(gone), gone, builder.eqns, results, gone)
    read = [v for v in results if any(k not in gone for k in level.readers(v))]
    return Group(edit, tuple(level.eqns[k] for k in sorted(gone)), tuple(read))


def _turned(level: Level, builder: Builder, found: Sequence[Spectrum]) -> dict[Var, Atom]:
    """What stands for values of which the symmetric half counts."""
    made: dict[Var, Atom] = {}
    for v, one in {v: one for s in found for v, one in s.turned.items()}.items():
        (half,) = builder.call(lambda x, one=one: symmetric_half(x, one.dims, one.sign), one.source)
        env: dict[Var, Atom] = {one.source: half}
        builder.eqns += [copy_equation(level.eqns[place], env) for place in one.chain]
        made[v] = env[v]
    return made


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


@record
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
