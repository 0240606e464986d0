"""What the functions of a rule trace to, in normal form: at the types of a site, and at example types."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ... import _jax
from ..._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from ..normalize import inline_call, is_plain_call, normalize
from ..program import producers, rename, substitute, with_equations
from ..same import literal_key
from .rule import Rule

# What a function may raise when it is traced at types that it is not meant for.
REFUSALS = (TypeError, ValueError, LookupError, ArithmeticError, AssertionError, AttributeError, NotImplementedError)
KEPT = 512  # traces of each rule


@dataclass(frozen=True)
class Reading:
    """How the operands of a site are given to a rule that is written for one example.

    Attributes:
        maps: for each `vmap` around the functions, from the outside: the axes of the operands and that of the result.
    """

    maps: tuple[tuple[tuple[int | None, ...], int], ...] = ()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` under these `vmap`s."""
        for ins, out in reversed(self.maps):
            function = jax.vmap(function, in_axes=ins, out_axes=out)
        return function

    def example(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The shapes for one example."""
        found = list(shapes)
        for ins, _ in self.maps:
            found = [s if a is None else s[:a] + s[a + 1 :] for s, a in zip(found, ins, strict=True)]
        return found


@dataclass(frozen=True, eq=False)
class Pattern:
    """A function of a rule as a program: it takes those operands that are no literals, and returns one array."""

    jaxpr: Jaxpr
    consts: dict[Var, Any]
    makers: dict[Var, int]
    inputs: tuple[int, ...]  # for each variable that it takes, which operand that is

    @property
    def result(self) -> Atom:
        """What it returns."""
        return self.jaxpr.outvars[0]


class Refused(ValueError):
    """The function cannot be traced so."""


def pattern_of(rule: Rule, part: str, atoms: Sequence[Atom], parameters: dict[str, Any], reading: Reading) -> Pattern:
    """The `part` ("before" or "after") of a rule at the types of `atoms`; literals are given as the numbers they are.

    Raises:
        Refused: it raises an error, or does not return one array.
    """
    types = tuple(literal_key(x) if _is_number(x) else (x.aval, _is_weak(x)) for x in atoms)
    key = (part, types, tuple(sorted((k, type(v), v) for k, v in parameters.items())), reading, _jax.trace_key())
    if key not in rule.kept:
        if len(rule.kept) >= KEPT:
            del rule.kept[next(iter(rule.kept))]
        rule.kept[key] = _traced(rule, part, atoms, parameters, reading)
    found = rule.kept[key]
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


def _traced(rule: Rule, part: str, atoms: Sequence[Atom], parameters: dict[str, Any], reading: Reading) -> Any:
    inputs = tuple(i for i, x in enumerate(atoms) if not _is_number(x))
    function = getattr(rule, part)

    def flat(*arrays: Any) -> list[Any]:
        given = dict(zip(inputs, arrays, strict=True))
        full = [number(x) if isinstance(x, Literal) and i not in given else given[i] for i, x in enumerate(atoms)]
        with _jax.inside_optimize(True):
            out = reading.around(lambda *xs: function(*xs, **parameters))(*full)
        if not isinstance(out, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(f"returns {type(out).__name__}, not one array")
        return [out]

    names = _jax.argument_names(function, (), {}, ()).with_unknown_names()
    try:
        program = _jax.trace_flat(flat, names, [atoms[i].aval for i in inputs])
    except REFUSALS as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return as_pattern(program, inputs)


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
KINDS = {bool: np.bool_, int: np.int32, float: np.float32, complex: np.complex64}


def ranks_tried(count: int) -> Iterator[tuple[int, ...]]:
    """Ranks of so many arguments: all of one rank first."""
    uniform = [(rank,) * count for rank in (2, 1, 0, 3)][: 4 if count else 1]
    yield from uniform
    yield from (ranks for ranks in itertools.product((1, 2, 0, 3), repeat=count) if ranks not in uniform)


def examples(rule: Rule) -> Iterator[Pattern]:
    """`before` at small arrays of the ranks that it takes: of floats, or of the type of an argument's annotation.

    Ranks up to three are tried, all arguments of one rank first. A function of integers only is found by integers.
    """
    annotated = [KINDS.get(rule.before.__annotations__.get(name)) for name in rule.arrays]
    count = len(rule.arrays)
    found, reason = False, ""
    for default in (np.float32, np.int32, np.bool_):
        for ranks in itertools.islice(ranks_tried(count), MOST_EXAMPLES):
            avals = [
                _jax.ShapedArray((SIZE,) * rank, np.dtype(kind or default))
                for rank, kind in zip(ranks, annotated, strict=True)
            ]
            try:
                yield pattern_of(rule, "before", [_jax.new_var(aval) for aval in avals], rule.parameters, Reading())
            except Refused as error:
                reason = reason or str(error)
                continue
            found = True
        if found:
            return
    rule.kept["untraceable"] = reason


def at_size(rule: Rule, example: Pattern, size: int) -> Pattern | None:
    """An example with arrays of another size; None where the function does not take them."""
    types = [_jax.ShapedArray((size,) * len(v.aval.shape), v.aval.dtype) for v in example.jaxpr.invars]
    try:
        return pattern_of(rule, "before", [_jax.new_var(aval) for aval in types], rule.parameters, Reading())
    except Refused:
        return None
