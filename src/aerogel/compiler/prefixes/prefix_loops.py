"""Prefixes one after the other: a tree of prefixes as a loop that carries the last one."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ..fusion.unit_dimensions import without_unit_dimensions
from ..level import Edit
from ..normalize import normalize
from ..program import Builder
from ..small_traces import traced
from .prefix_matches import Found, Total
from .prefix_trees import FIRST, Tree

NEUTRAL = (0, 1, -np.inf, np.inf)


class PrefixLoop:
    """The loop of a tree.

    Attributes:
        wanted: the elements whose prefixes are read.
        carried: the elements whose last prefix the next one needs, the wanted ones included.
    """

    def __init__(self, tree: Tree, wanted: Iterable[int]) -> None:
        self.tree, self.wanted = tree, sorted(set(wanted))
        self.carried = sorted({*self.wanted, *tree.combine.needed_by(self.wanted, (FIRST,))})
        self.step = one_pair(tree)
        self.neutral = self._neutral()

    def __call__(self, elements: Sequence[Any], constants: Sequence[Any], moving: Collection[int] = ()) -> list[Any]:
        """The prefixes of the elements that are wanted; those `moving` are differentiated."""
        tree = self.tree
        same = tree.alike - {*moving}
        if self.is_sum:  # JAX has an operation for it, for which rules know how few rounding errors it may make
            return [lax.cumsum(elements[k], tree.axes[k]) for k in self.wanted]
        rows = [jnp.moveaxis(x, axis, 0) for x, axis in zip(elements, tree.axes, strict=True)]

        def step(before: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            second = [rows[k][0] if k in same else x for k, x in enumerate(row)]
            first = list(second)  # of elements that are not carried, nothing depends on it
            for k, x in zip(self.carried, before, strict=True):
                first[k] = x
            joined = _jax.evaluate(ClosedJaxpr(self.step, ()), [*first, *second, *constants])
            return [joined[k] for k in self.carried], [joined[k] for k in self.wanted]

        if self.neutral is not None:
            start = [lax.full_like(rows[k][0], value) for k, value in zip(self.carried, self.neutral, strict=True)]
            _, found = lax.scan(step, start, [None if k in same else x for k, x in enumerate(rows)])
        else:
            _, later = lax.scan(
                step, [rows[k][0] for k in self.carried], [None if k in same else x[1:] for k, x in enumerate(rows)]
            )
            found = [lax.concatenate([rows[k][:1], x], 0) for k, x in zip(self.wanted, later, strict=True)]
        return [jnp.moveaxis(x, 0, tree.axes[k]) for k, x in zip(self.wanted, found, strict=True)]

    @property
    def is_sum(self) -> bool:
        """Whether each element that is wanted is added up by itself."""
        n = len(self.tree.elements)
        makers: dict[Atom, JaxprEqn] = {v: eqn for eqn in self.step.eqns for v in eqn.outvars}
        made = [(makers.get(self.step.outvars[k]), {self.step.invars[k], self.step.invars[n + k]}) for k in self.wanted]
        return all(eqn is not None and eqn.primitive.name == "add" and set(eqn.invars) == pair for eqn, pair in made)

    def _neutral(self) -> tuple[Any, ...] | None:
        """Numbers that, as the carried elements, leave what follows as it is; None if none of a few do."""
        n = len(self.tree.elements)
        types = [self.tree.elements[k].aval.dtype for k in self.carried]
        choices = [NEUTRAL if jnp.issubdtype(dtype, jnp.inexact) else NEUTRAL[:2] for dtype in types]
        for values in product(*choices):
            env: dict[Any, Any] = dict(zip((self.step.invars[k] for k in self.carried), values, strict=True))
            env.update((v, v) for v in self.step.invars[n : 2 * n])
            for eqn in self.step.eqns:
                env[eqn.outvars[0]] = _value(eqn, [x.val if isinstance(x, Literal) else env.get(x) for x in eqn.invars])
            if all(env.get(self.step.outvars[k]) is self.step.invars[n + k] for k in self.carried):
                return values
        return None


def one_pair(tree: Tree) -> Jaxpr:
    """The function of one pair, without the axis of the entries: of all first elements, all second ones, constants."""
    n = len(tree.elements)

    def one(*x: Any) -> list[Any]:
        pair = [lax.expand_dims(v, [axis]) for v, axis in zip(x, tree.axes * 2, strict=False)]
        joined = tree.combine(1, pair[:n], pair[n:], x[2 * n :])
        return [lax.squeeze(v, [axis]) for v, axis in zip(joined, tree.axes, strict=True)]

    entries = [
        x.aval.update(shape=(*x.aval.shape[:axis], *x.aval.shape[axis + 1 :]))
        for x, axis in zip(tree.elements, tree.axes, strict=True)
    ]
    step = traced(one, [*entries, *entries, *(x.aval for x in tree.constants)], tree.like)
    return normalize(ClosedJaxpr(without_unit_dimensions(step.jaxpr), ()))[0].jaxpr


def _value(eqn: JaxprEqn, operands: Sequence[Any]) -> Any:
    """What an equation gives of numbers and variables, its operands: one of these, or None if it is not known."""
    name = eqn.primitive.name
    numbers = [x if np.ndim(x) == 0 and isinstance(x, (int, float, np.generic)) else None for x in operands]
    if name in ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "convert_element_type", "copy"):
        return numbers[0]
    if len(operands) != 2:
        return None
    for number, other in ((numbers[0], operands[1]), (numbers[1], operands[0])):
        if name in ("mul", "dot_general") and number == 0:
            return 0
        if name == "and" and eqn.outvars[0].aval.dtype != np.bool_:
            return None  # of integers, bit by bit
        if (name, number) in (("add", 0), ("or", 0), ("mul", 1), ("and", 1), ("max", -np.inf), ("min", np.inf)):
            same = isinstance(other, Var) and other.aval.shape == eqn.outvars[0].aval.shape
            return other if same else None
    return operands[0] if name == "sub" and numbers[1] == 0 else None


def in_their_places(found: Sequence[tuple[PrefixLoop, Found]]) -> list[Edit]:
    """Loops in place of trees, with their gradients if the program has some."""
    edits, made = list[Edit](), list[tuple[Total, Atom]]()
    for loop, one in found:
        builder = Builder(loop.tree.like)
        prefixes, cotangents = _computed(loop, one, builder)
        results = {var: builder.as_weak_as(var, x) for var, x in zip(one.prefixes.values(), prefixes, strict=True)}
        edits.append(Edit(max(one.gone), one.gone, builder.eqns, results, one.gone))
        made += zip(one.totals.values(), cotangents, strict=True)
    for var in dict.fromkeys(total.var for total, _ in made):
        builder = Builder(found[-1][0].tree.like)
        terms = _summands(var, made)
        (whole,) = builder.call(lambda *terms: sum(terms[1:], terms[0]), *terms)
        edits[-1].results[var] = builder.as_weak_as(var, whole)
        edits[-1] = replace(edits[-1], eqns=[*edits[-1].eqns, *builder.eqns])
    return edits


def _summands(var: Var, made: Sequence[tuple[Total, Atom]]) -> list[Atom]:
    """What is added up to a cotangent: what loops made, and the rest. Two trees may share a leaf."""
    own = [(total, x) for total, x in made if total.var is var]
    rest = list(own[0][0].others)
    for total, _ in made:
        if total is not own[0][0] and all(any(x is y for y in rest) for x in total.terms):
            rest = [y for y in rest if not any(y is x for x in total.terms)]
            rest += [total.var] * (total.var is not var)
    return [*(x for _, x in own), *rest]


def _computed(loop: PrefixLoop, found: Found, builder: Builder) -> tuple[list[Atom], list[Atom]]:
    """The prefixes, and the cotangents of the leaves."""
    tree = loop.tree
    n, m = len(tree.elements), len(tree.constants)
    outputs, read, wanted = list(found.prefixes), list(found.cotangents), list(found.totals)

    def computed(*x: Any) -> list[Any]:
        def prefixes(*moving: Any) -> list[Any]:
            given = list(x[:n])
            for k, v in zip(wanted, moving, strict=True):
                given[k] = v
            return loop(given, x[n : n + m], wanted)

        if not wanted:
            values = dict(zip(loop.wanted, prefixes(), strict=True))
            return [values[k] for k in outputs]
        made, pull = jax.vjp(prefixes, *(x[k] for k in wanted))
        values, given = dict(zip(loop.wanted, made, strict=True)), dict(zip(read, x[n + m :], strict=True))
        cotangents = pull([given[k] if k in given else jnp.zeros_like(v) for k, v in values.items()])
        return [*(values[k] for k in outputs), *cotangents]

    atoms = builder.call(computed, *tree.elements, *tree.constants, *found.cotangents.values())
    return atoms[: len(outputs)], atoms[len(outputs) :]
