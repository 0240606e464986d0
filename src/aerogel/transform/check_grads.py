"""`check_grads`: derivatives held against numerical ones, in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.module._paths import show_path

from ._errors import DerivativeError, GradientError
from ._part import Part, chosen_mask
from .numeric import Flat, Numeric, pairing
from .trace_program import function_name

_jax.exclude_from_tracebacks(__file__)

MODES = {"fwd": "forward mode", "rev": "reverse mode"}
_SEED = 0


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: str | Sequence[str] = ("fwd", "rev"),
    *,
    eps: float | None = None,
    rtol: float | None = None,
) -> None:
    """Raises unless the derivatives of `f` are those that its values show, up to an order and in each mode.

    Everything is computed in float64, whatever the arguments are. The numerical derivative is that of a complex step
    where `f` is analytic, which costs no digits, and else of a central difference. Each array of the arguments is
    moved in a random direction; where the derivative fails, the entry at fault is searched for.

    Args:
        f: a function of anything that returns anything. What is differentiated are the inexact arrays that are not
            frozen; integers, keys and other values stay as they are, in the result too.
        args: its positional arguments, away from kinks: `relu` has no derivative at 0.
        order: 1 for derivatives, 2 for those of derivatives too, in all pairs of modes, and so on.
        modes: "fwd", "rev" or both. A function with a `custom_vjp` has no forward mode.
        eps: the step of differences, relative to an array's largest entry or 1, whichever is more; by default the
            cube root of the resolution of the narrowest floats in the program.
        rtol: how far derivatives may be apart, relative to the largest of an array; by default a hundred times the
            square root of that resolution, and at most 0.1.

    Raises:
        DerivativeError: a derivative is wrong; names an entry of each argument that shows it.
        GradientError: nothing in the arguments has a gradient.
        UsageError: `order` or `modes` is something else.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> @ag.custom_jvp
    ... def cube(x):
    ...     return x**3
    >>> @cube.defjvp
    ... def cube_jvp(primals, tangents):
    ...     return cube(*primals), 2 * primals[0] ** 2 * tangents[0]
    >>> try:
    ...     ag.check_grads(cube, (jnp.array([1.0, 2.0]),))
    ... except ag.DerivativeError as error:
    ...     print(error.got)
    result[1] by x[1]  8, wanted 12 by a complex step
    """
    if order < 1:
        raise UsageError(argument="order", got=order, wanted="1 or more", function="check_grads")
    modes = (modes,) if isinstance(modes, str) else modes
    for mode in modes:
        if mode not in MODES:
            raise UsageError(argument="modes", got=mode, wanted=tuple(MODES), function="check_grads")
    with jax.enable_x64(True):
        flat = _flat(f, tuple(jax.tree.map(_wide, tuple(args))))
        rng = np.random.default_rng(_SEED)
        _Check(function_name(f), flat, Numeric.of(flat, eps, rtol), (), rng).run(order, modes)


def _wide(x: Any) -> Any:
    """An inexact array with 64 bits to a number."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jnp.inexact):
        return x
    return jnp.asarray(x, jnp.complex128 if jax.dtypes.issubdtype(dtype, jnp.complexfloating) else jnp.float64)


def _flat(f: Callable[..., Any], args: tuple[Any, ...]) -> Flat:
    """`f` from the arrays that it is differentiated by to the inexact arrays of its result.

    Raises:
        GradientError: it is differentiated by nothing.
    """
    parts = [Part(x) for x in args]
    names = [path for name, x in zip(_names(f, len(args)), args, strict=True) for path in _chosen_paths(x, name)]
    if not names:
        raise GradientError(
            what="nothing in the arguments has a gradient.",
            place=f"`check_grads({function_name(f)}, ...)`",
            got=f"{len(args)} arguments",
            wanted="an array of floating-point numbers that is not frozen",
            to_fix="pass 1.0 for 1, or ag.unfreeze what is to be learned",
        )

    def result(*chosen: Any) -> Any:
        rest = iter(chosen)
        return f(*(part.whole([next(rest) for _ in part.chosen]) for part in parts))

    inputs = tuple(x for part in parts for x in part.chosen)
    return Flat(lambda *chosen: Part(result(*chosen)).chosen, inputs, names, _chosen_paths(result(*inputs), "result"))


def _chosen_paths(tree: Any, name: str) -> list[str]:
    pairs = zip(jax.tree.leaves_with_path(tree), chosen_mask(tree, None), strict=True)
    return [show_path(path, name) for (path, _), is_chosen in pairs if is_chosen]


def _names(f: Callable[..., Any], count: int) -> list[str]:
    known = _jax.signature(f)
    parameters = () if known is None else known.parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*names, *(f"args[{i}]" for i in range(len(names), count))][:count]


@dataclass(frozen=True)
class _Tried:
    """A derivative in one direction: entries got and wanted, how far they are off, and how it is known."""

    got: np.ndarray
    wanted: np.ndarray
    error: np.ndarray
    how: str

    @property
    def worst(self) -> float:
        return float(np.max(self.error, initial=0))


@dataclass(frozen=True)
class _Check:
    """A function whose derivatives are checked: that of the user, or a derivative of it in the modes `taken`."""

    name: str
    flat: Flat
    numeric: Numeric
    taken: tuple[str, ...]
    rng: np.random.Generator

    def run(self, order: int, modes: Sequence[str]) -> None:
        """Raises what `check_grads` raises."""
        outputs = self.flat.function(*self.flat.inputs)
        # A scalar's gradient is what users know as such; of more results a random combination is differentiated.
        cotangents = [jnp.ones_like(outputs[0])] if self._has_one(outputs) else [self._random(x) for x in outputs]
        for mode in modes:
            lines = []
            for i, x in enumerate(self.flat.inputs):
                direction = self._random(x)
                if self._tried(mode, i, direction, cotangents).worst > 1:
                    lines.append(self._located(mode, i, direction, cotangents, outputs))
            if lines:
                raise self._error(mode, lines)
            if order > 1:
                derived = self._derived(mode, cotangents)
                _Check(self.name, derived, self.numeric, (mode, *self.taken), self.rng).run(order - 1, modes)

    def _has_one(self, outputs: Sequence[Any]) -> bool:
        return len(outputs) == 1 and outputs[0].size == 1

    def _random(self, x: Any) -> Any:
        """Numbers of either sign that are far from 0 and from each other's sums."""

        def draw() -> np.ndarray:
            return self.rng.uniform(0.5, 1.5, x.shape) * self.rng.choice([-1.0, 1.0], x.shape)

        return jnp.asarray(draw() + 1j * draw() if jnp.iscomplexobj(x) else draw())

    def _tried(self, mode: str, i: int, direction: Any, cotangents: Sequence[Any]) -> _Tried:
        """The derivative by input `i` in a direction: of all results, or in reverse mode of their combination."""
        function, x, numeric = self.flat.of_one(i), self.flat.inputs[i], self.numeric
        wanted = numeric.along(self.flat, i, direction)
        if mode == "fwd":
            arrays = [np.asarray(y) for y in jax.jvp(function, (x,), (direction,))[1]]
            errors = [numeric.error(a, b, wanted.floor) for a, b in zip(arrays, wanted.arrays, strict=True)]
            got, wants, error = (np.concatenate([y.ravel() for y in ys]) for ys in (arrays, wanted.arrays, errors))
            return _Tried(got, wants, error, wanted.how)
        (gradient,) = jax.vjp(function, x)[1](list(cotangents))
        one, its_size = pairing([gradient], [direction])
        other, other_size = pairing(cotangents, wanted.arrays)
        got, wants = np.array([one]), np.array([other])
        error = numeric.error(got, wants, wanted.floor * sum(c.size for c in cotangents), max(its_size, other_size))
        return _Tried(got, wants, error, wanted.how)

    def _located(self, mode: str, i: int, direction: Any, cotangents: Sequence[Any], outputs: Sequence[Any]) -> str:
        """A line about the entry of input `i` that is to blame, found by halves."""
        x = self.flat.inputs[i]
        entries = np.arange(x.size)

        def only(chosen: np.ndarray, values: Any) -> Any:
            mask = np.zeros(x.size)
            mask[chosen] = 1
            return jnp.asarray(mask.reshape(x.shape) * np.asarray(values))

        while len(entries) > 1:
            halves = np.array_split(entries, 2)
            entries = max(halves, key=lambda half: self._tried(mode, i, only(half, direction), cotangents).worst)
        tried = self._tried(mode, i, only(entries, np.ones(x.shape)), cotangents)
        if tried.worst <= 1:  # a complex number's other part
            tried = self._tried(mode, i, only(entries, np.asarray(direction)), cotangents)
        at = int(np.argmax(tried.error))
        is_whole = mode == "fwd" or self._has_one(outputs)
        of = self._result_entry(at, outputs) if is_whole else "a random combination of the results"
        by = self.flat.names[i] + _index(int(entries[0]), x.shape)
        return f"{of} by {by}  {_number(tried.got[at])}, wanted {_number(tried.wanted[at])} by {tried.how}"

    def _result_entry(self, at: int, outputs: Sequence[Any]) -> str:
        for name, y in zip(self.flat.result_names, outputs, strict=True):
            if at < y.size:
                return name + _index(at, y.shape)
            at -= y.size
        raise AssertionError("the entry is one of the results'")

    def _error(self, mode: str, lines: list[str]) -> DerivativeError:
        way = " over ".join(MODES[one] for one in (mode, *self.taken))
        return DerivativeError(
            what=f"{'a derivative of ' * len(self.taken)}the derivative of `{self.name}` is not that of its values.",
            place=f"`{self.name}`, {way}",
            got="\n".join(lines),
            to_fix="mend the rule of its derivative; where the values are rounded, allow more: rtol=, eps=",
        )

    def _derived(self, mode: str, cotangents: Sequence[Any]) -> Flat:
        """A derivative as a function: in one direction, or of one combination of the results."""
        flat = self.flat
        directions = [self._random(x) for x in flat.inputs]

        def forward(*xs: Any) -> list[Any]:
            tangents = tuple(d.astype(x.dtype) for d, x in zip(directions, xs, strict=True))
            return jax.jvp(flat.function, xs, tangents)[1]

        def backward(*xs: Any) -> list[Any]:
            outputs, pull = jax.vjp(flat.function, *xs)
            return list(pull([c.astype(y.dtype) for c, y in zip(cotangents, outputs, strict=True)]))

        if mode == "fwd":
            return Flat(forward, flat.inputs, flat.names, [f"a derivative of {name}" for name in flat.result_names])
        return Flat(backward, flat.inputs, flat.names, [f"the gradient by {name}" for name in flat.names])


def _index(at: int, shape: tuple[int, ...]) -> str:
    return f"[{', '.join(str(int(k)) for k in np.unravel_index(at, shape))}]" if shape else ""


def _number(x: Any) -> str:
    return f"{x.item():.6g}"
