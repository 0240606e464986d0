"""Numerical derivatives of functions of arrays: by a complex step where that is exact, else by a central difference."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax

_jax.exclude_from_tracebacks(__file__)

# What a function may raise that is given complex numbers in the place of real ones.
_REFUSALS = (TypeError, ValueError, LookupError, ArithmeticError, AssertionError, AttributeError, NotImplementedError)
_COMPLEX_STEP = 1e-30
_MOST_RTOL = 0.1


@dataclass(frozen=True)
class Flat:
    """A function from inexact arrays to a list of inexact arrays, at a point.

    Attributes:
        names: of the inputs.
        result_names: of the results.
    """

    function: Callable[..., list[Any]]
    inputs: tuple[Any, ...]
    names: list[str]
    result_names: list[str]

    def of_one(self, i: int) -> Callable[[Any], list[Any]]:
        """The same as a function of one input, the others as they are."""
        return lambda x: self.function(*self.inputs[:i], x, *self.inputs[i + 1 :])


@dataclass(frozen=True)
class Derivative:
    """The derivative in one direction, as values show it.

    Attributes:
        arrays: one for each result.
        floor: what is rounding.
        how: by which it was found, for messages.
    """

    arrays: list[np.ndarray]
    floor: float
    how: str


@dataclass(frozen=True)
class Numeric:
    """How derivatives are found, and how near to them others must be.

    Attributes:
        resolution: of the narrowest floats in the program.
        eps: the step of differences, relative to an array's largest entry or 1.
        rtol: how far derivatives may be apart, relative to the largest one.
    """

    resolution: float
    eps: float
    rtol: float

    @classmethod
    def of(cls, flat: Flat, eps: float | None, rtol: float | None) -> "Numeric":
        """With what was given, and else what the program's floats allow."""
        resolution = _resolution(flat)
        chosen = min(_MOST_RTOL, 100 * resolution**0.5) if rtol is None else rtol
        return cls(resolution, resolution ** (1 / 3) if eps is None else eps, chosen)

    def along(self, flat: Flat, i: int, direction: Any) -> Derivative:
        """The derivative by input `i` in a direction."""
        function, x = flat.of_one(i), flat.inputs[i]
        step = self.eps * max(1.0, float(jnp.max(jnp.abs(x), initial=0)))
        above, below = (_as_arrays(function(x + sign * step * direction)) for sign in (1, -1))
        with np.errstate(invalid="ignore"):  # at the edge of where it is defined
            difference = [(a - b) / (2 * step) for a, b in zip(above, below, strict=True)]
        floor = 10 * self.resolution ** (2 / 3) * max(1.0, *(float(np.max(np.abs(a), initial=0)) for a in above))
        exact = _by_complex_step(function, x, direction)
        if exact is not None and all(self.agree(a, b, floor) for a, b in zip(exact, difference, strict=True)):
            return Derivative(exact, floor, "a complex step")
        return Derivative(difference, floor, "a central difference")

    def agree(self, got: np.ndarray, wanted: np.ndarray, floor: float) -> bool:
        """Whether one derivative may stand for the other."""
        return bool(np.all(self.error(got, wanted, floor) <= 1))

    def error(self, got: np.ndarray, wanted: np.ndarray, floor: float, size: float | None = None) -> np.ndarray:
        """How far each entry is off, in units of what is allowed; inf where one of them alone is no number.

        Args:
            size: what `rtol` is relative to; by default the largest entry that is wanted.
        """
        size = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0)) if size is None else size
        with np.errstate(invalid="ignore"):
            off = np.abs(got - wanted) / (self.rtol * size + floor)
        off = np.where((got == wanted) | (np.isnan(got) & np.isnan(wanted)), 0.0, off)
        return np.where(np.isnan(off), np.inf, off)


def pairing(cotangents: Sequence[Any], tangents: Sequence[Any]) -> tuple[float, float]:
    """The product of cotangents and tangents, and the sum of the sizes of its terms."""
    terms = [np.real(np.asarray(c) * np.asarray(t)) for c, t in zip(cotangents, tangents, strict=True)]
    return float(sum(np.sum(x) for x in terms)), float(sum(np.sum(np.abs(x)) for x in terms))


def _by_complex_step(function: Callable[[Any], list[Any]], x: Any, direction: Any) -> list[np.ndarray] | None:
    """The derivative to all digits, if the function is analytic: else something else, or None."""
    if jnp.iscomplexobj(x):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # that a part of the number is dropped, say
            moved = _as_arrays(function(x + 1j * _COMPLEX_STEP * direction))
    except (*_REFUSALS, Warning):
        return None
    return [np.imag(y) / _COMPLEX_STEP for y in moved]


def _as_arrays(values: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(y) for y in values]


def _resolution(flat: Flat) -> float:
    """The spacing of the narrowest floats in the program at 1; that of float64 where it cannot be traced."""
    try:
        program = jax.make_jaxpr(flat.function)(*flat.inputs)
    except jax.errors.JAXTypeError:  # it looks at values
        return float(jnp.finfo(jnp.float64).eps)
    found, seen, stack = {np.dtype(np.float64)}, set[int](), [program.jaxpr]
    while stack:
        for eqn in stack.pop().eqns:
            found |= {v.aval.dtype for v in eqn.outvars if jax.dtypes.issubdtype(v.aval.dtype, jnp.inexact)}
            for inner in _jax.jaxprs_in_params(eqn.params):
                opened = getattr(inner, "jaxpr", inner)
                if id(opened) not in seen:
                    seen.add(id(opened))
                    stack.append(opened)
    return max(float(jnp.finfo(dtype).eps) for dtype in found)
