"""What the functions of a rule trace to, in normal form: at the types of a site, and at example types."""

import inspect
import itertools
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ... import _jax
from ..._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from ..normalize import inline_call, is_plain_call, normalize
from ..program import Makers, producers, rename, substitute, with_equations
from ..record import record
from ..same import literal_key
from .anywhere import axis_name
from .errors import RuleError
from .rule import Rule

# What a function may raise when it is traced at types that it is not meant for.
REFUSALS = (TypeError, ValueError, LookupError, ArithmeticError, AssertionError, AttributeError, NotImplementedError)
OWN = os.path.dirname(os.path.dirname(str(_jax.__file__)))
LIBRARIES = tuple(os.path.dirname(str(module.__file__)) for module in (jax, np))
Map = tuple[tuple[int | None, ...], tuple[int, ...]]


@record
class Reading:
    """How the operands of a site are given to a rule that is written for one example.

    Attributes:
        maps: for each `vmap` around the functions, from the outside: the axes of the operands and those of the results.
    """

    maps: tuple[Map, ...] = ()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which returns a tuple, under these `vmap`s."""
        for depth, (ins, outs) in enumerate(reversed(self.maps)):
            function = jax.vmap(function, in_axes=ins, out_axes=outs, axis_name=axis_name(depth))
        return function

    def with_results_first(self, count: int) -> "Reading":
        """The reading whose results, so many of them, have the mapped axes in front, as `jax.vmap` has it."""
        return Reading(tuple((ins, (0,) * count) for ins, _ in self.maps))

    def example(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The shapes for one example."""
        found = list(shapes)
        for ins, _ in self.maps:
            found = [s if a is None else s[:a] + s[a + 1 :] for s, a in zip(found, ins, strict=True)]
        return found


@dataclass(frozen=True, eq=False)
class Pattern:
    """A function of a rule as a program: it takes those operands that are no literals."""

    jaxpr: Jaxpr
    consts: dict[Var, Any]
    makers: Makers
    inputs: tuple[int, ...]  # for each variable that it takes, which operand that is

    @property
    def results(self) -> Sequence[Atom]:
        """What it returns."""
        return self.jaxpr.outvars


class Refused(ValueError):
    """The function cannot be traced so."""


def pattern_of(
    rule: Rule, function: Callable[..., Any], atoms: Sequence[Atom], parameters: dict[str, Any], reading: Reading
) -> Pattern:
    """A function of a rule at the types of `atoms`; literals are given as the numbers they are.

    Raises:
        Refused: it raises an error, or returns something else than arrays.
        RuleError: what it raises says that it is wrong at any types.
    """
    types = tuple(literal_key(x) if _is_number(x) else (x.aval, _is_weak(x)) for x in atoms)
    key = (function, types, tuple(sorted((k, type(v), v) for k, v in parameters.items())), reading, _jax.trace_key())
    found = rule.kept.get(key)
    if found is None:
        try:
            found = rule.kept.put(key, _traced(function, atoms, parameters, reading))
        except (AttributeError, AssertionError) as error:
            raise mistake(rule, error) from error
    if isinstance(found, str):
        raise Refused(found)
    return found


def _is_weak(x: Atom) -> bool:
    return bool(getattr(x.aval, "weak_type", False))


def _is_number(x: Atom) -> bool:
    return isinstance(x, Literal) and not np.shape(x.val)


def number(x: Literal) -> Any:
    """The value of a literal, as a Python number if its type gives way to others."""
    value = np.asarray(x.val, x.aval.dtype)
    return value.item() if _is_weak(x) else value[()]


def of_arrays(
    function: Callable[..., Any], atoms: Sequence[Atom], parameters: dict[str, Any], reading: Reading
) -> Callable[..., list[Any]]:
    """A function of a rule, of those operands that are no literals; literals are given as the numbers they are."""
    inputs = operands_given(atoms)

    def flat(*arrays: Any) -> list[Any]:
        given = dict(zip(inputs, arrays, strict=True))
        full = [number(x) if isinstance(x, Literal) and i not in given else given[i] for i, x in enumerate(atoms)]
        with _jax.inside_optimize(True):
            return list(reading.around(lambda *xs: arrays_of(function(*xs, **parameters)))(*full))

    return flat


def operands_given(atoms: Sequence[Atom]) -> tuple[int, ...]:
    """Which operands are no literals."""
    return tuple(i for i, x in enumerate(atoms) if not _is_number(x))


def _traced(function: Callable[..., Any], atoms: Sequence[Atom], parameters: dict[str, Any], reading: Reading) -> Any:
    inputs, flat = operands_given(atoms), of_arrays(function, atoms, parameters, reading)
    names = _jax.argument_names(function, (), {}, ()).with_unknown_names()
    try:
        program = _jax.trace_flat(flat, names, [atoms[i].aval for i in inputs])
    except REFUSALS as error:
        if _is_mistake(error):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return as_pattern(program, inputs)


def arrays_of(out: Any) -> tuple[Any, ...]:
    """The arrays that a function of a rule returns: one, or several in a tuple or a list.

    Raises:
        TypeError: it returns something else.
    """
    found = tuple(out) if isinstance(out, tuple | list) else (out,)
    for x in found:
        if not isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(f"returns {type(x).__name__}, not an array")
    return found


def _is_mistake(error: BaseException) -> bool:
    """Whether an assertion, or an attribute that is not there, is one of the function itself and not of JAX.

    A number of the program is given as a Python number, which has no shape: that is no mistake.
    """
    if not isinstance(error, AttributeError | AssertionError) or error.__traceback__ is None:
        return False
    if isinstance(error, AttributeError) and isinstance(error.obj, bool | int | float | complex):
        return False
    hidden = any("JAX" in note for note in getattr(error, "__notes__", ()))  # its own frames are cut off
    return not hidden and not _last_frame(error).filename.startswith(LIBRARIES)


def _last_frame(error: BaseException) -> traceback.FrameSummary:
    """Where an error was raised, in a user's function if it was in one; of an attribute, where it was asked for."""
    frames = [frame for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.name != "__getattr__"]
    return next((frame for frame in frames if not frame.filename.startswith(OWN)), frames[0])


def mistake(
    rule: Rule,
    error: BaseException,
    part: str = "function",
    to_fix: str = "mend it; types that it is not meant for, it refuses with a ValueError, or `when` does",
) -> RuleError:
    """The error about a part of a rule that raises one, with the line where it did."""
    last = _last_frame(error)
    return RuleError(
        rule=rule.name,
        what=f"has a {part} that raises {type(error).__name__}.",
        where=f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}",
        got=str(error) or last.line or "no message",
        to_fix=to_fix,
    )


def as_pattern(program: ClosedJaxpr, inputs: tuple[int, ...]) -> Pattern:
    """A traced function in normal form, with all calls inlined."""
    normal, _ = normalize(program)
    jaxpr = normal.jaxpr
    while any(map(is_plain_call, jaxpr.eqns)):  # one that stands there twice
        eqns: list[JaxprEqn] = []
        env: dict[Var, Atom] = {}
        for eqn in jaxpr.eqns:
            eqn = rename(eqn, env)
            if is_plain_call(eqn):
                inline_call(eqn, eqns, env)
            else:
                eqns.append(eqn)
        jaxpr = with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])
        normal, _ = normalize(ClosedJaxpr(jaxpr, normal.consts))
        jaxpr = normal.jaxpr
    consts = dict(zip(normal.jaxpr.constvars, normal.consts, strict=True))
    return Pattern(normal.jaxpr, consts, producers(normal.jaxpr), inputs)


# --- examples: what is looked for before any type is known -------------------------------------------------------

SIZE = 4
MOST_EXAMPLES = 32
MOST_TRIED = 256  # until there is one: all ranks of four arguments
KINDS = {bool: np.bool_, int: np.int32, float: np.float32, complex: np.complex64}


def dtype_of(annotation: Any) -> Any:
    """The dtype of an argument that is annotated with a Python type or with `jax.dtypes.prng_key`; else None."""
    if isinstance(annotation, str):  # from __future__ import annotations
        names = {kind.__name__: kind for kind in KINDS} | {"prng_key": jax.dtypes.prng_key}
        annotation = names.get(annotation.rsplit(".", 1)[-1])
    if annotation is jax.dtypes.prng_key:
        return jax.eval_shape(lambda: jax.random.key(0)).dtype
    kind = KINDS.get(annotation)
    return None if kind is None else np.dtype(kind)


def ranks_tried(count: int) -> Iterator[tuple[int, ...]]:
    """Ranks of so many arguments: all of one rank first."""
    uniform = [(rank,) * count for rank in (2, 1, 0, 3)][: 4 if count else 1]
    yield from uniform
    yield from (ranks for ranks in itertools.product((1, 2, 0, 3), repeat=count) if ranks not in uniform)


def _shapes_tried(rule: Rule, is_key: list[bool]) -> Iterator[Sequence[tuple[int, ...]]]:
    """Those that the rule names, or square ones; a key has none."""
    if rule.shapes is not None:
        yield rule.shapes
        return
    for ranks in ranks_tried(is_key.count(False)):
        rest = iter(ranks)
        yield [() if key else (SIZE,) * next(rest) for key in is_key]


def examples(rule: Rule, before: Callable[..., Any]) -> Iterator[tuple[tuple[int, ...], Pattern]]:
    """`before` at small arrays of the ranks that it takes, with these: of floats, or of the types of annotations.

    Ranks up to three are tried, all arguments of one rank first; a key is one key. A function of integers only is
    found by integers.
    """
    annotated = [dtype_of(before.__annotations__.get(name)) for name in inspect.signature(before).parameters]
    annotated = annotated[: len(rule.arrays)]
    is_key = [kind is not None and not isinstance(kind, np.dtype) for kind in annotated]
    found, reason = False, ""
    for default in (np.float32, np.int32, np.bool_):
        for tried, shapes in enumerate(itertools.islice(_shapes_tried(rule, is_key), MOST_TRIED)):
            if found and tried >= MOST_EXAMPLES:
                return
            ranks = tuple(len(shape) for shape, key in zip(shapes, is_key, strict=True) if not key)
            avals = [_jax.ShapedArray(s, kind or np.dtype(default)) for s, kind in zip(shapes, annotated, strict=True)]
            try:
                pattern = pattern_of(rule, before, [_jax.new_var(aval) for aval in avals], rule.parameters, Reading())
            except Refused as error:
                reason = reason or str(error)
                continue
            found = True
            yield ranks, pattern
        if found:
            return
    rule.kept.put("untraceable", reason)


def at_size(rule: Rule, before: Callable[..., Any], example: Pattern, size: int) -> Pattern | None:
    """An example with arrays of another size; None where the function does not take them."""
    types = [_jax.ShapedArray((size,) * len(v.aval.shape), v.aval.dtype) for v in example.jaxpr.invars]
    try:
        return pattern_of(rule, before, [_jax.new_var(aval) for aval in types], rule.parameters, Reading())
    except Refused:
        return None
