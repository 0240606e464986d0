"""Prefixes one after the other: a tree of prefixes as a loop that carries the last one."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from .level import Edit, Level
from .normalize import normalize
from .prefix_matches import Found
from .prefix_trees import Tree
from .program import Builder, is_var
from .small_traces import traced
from .unit_dimensions import without_unit_dimensions

# Operations of two numbers that JAX accumulates itself.
ACCUMULATES = {"add": lax.cumsum, "mul": lax.cumprod, "max": lax.cummax, "min": lax.cummin}
NEUTRAL = (0, 1, -np.inf, np.inf)


class PrefixLoop:
    """The loop of a tree.

    Attributes:
        wanted: the elements whose prefixes are read.
        carried: the elements whose last prefix the next one needs, the wanted ones included.
    """

    def __init__(self, tree: Tree, wanted: Sequence[int]) -> None:
        self.tree, self.wanted = tree, list(wanted)
        self.carried = sorted({*wanted, *tree.combine.firsts_of(wanted)})
        self.step = one_pair(tree)
        self.neutral = self._neutral()

    def __call__(self, elements: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """The prefixes of the elements that are wanted."""
        tree = self.tree
        if self.accumulates is not None:
            return [self.accumulates(elements[k], tree.axes[k]) for k in self.wanted]
        rows = [jnp.moveaxis(x, axis, 0) for x, axis in zip(elements, tree.axes, strict=True)]

        def step(before: Sequence[Any], second: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            first = list(second)  # of elements that are not carried, nothing depends on it
            for k, x in zip(self.carried, before, strict=True):
                first[k] = x
            joined = jax.core.eval_jaxpr(self.step, (), *first, *second, *constants)
            return [joined[k] for k in self.carried], [joined[k] for k in self.wanted]

        if self.neutral is not None:
            start = [lax.full_like(rows[k][0], value) for k, value in zip(self.carried, self.neutral, strict=True)]
            _, found = lax.scan(step, start, rows)
        else:
            _, later = lax.scan(step, [rows[k][0] for k in self.carried], [x[1:] for x in rows])
            found = [lax.concatenate([rows[k][:1], x], 0) for k, x in zip(self.wanted, later, strict=True)]
        return [jnp.moveaxis(x, 0, tree.axes[k]) for k, x in zip(self.wanted, found, strict=True)]

    @property
    def accumulates(self) -> Any:
        """JAX's own accumulation, if each wanted element is joined to itself by one of its operations."""
        names = {self._own_operation(k) for k in self.wanted}
        return ACCUMULATES.get(names.pop() or "") if len(names) == 1 else None

    def _own_operation(self, k: int) -> str | None:
        eqn = next((eqn for eqn in self.step.eqns if self.step.outvars[k] in eqn.outvars), None)
        if eqn is None or eqn.outvars[0].aval.dtype == np.bool_:
            return None
        n = len(self.tree.elements)
        return eqn.primitive.name if set(eqn.invars) == {self.step.invars[k], self.step.invars[n + k]} else None

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
        if (name, number) in (("add", 0), ("or", 0), ("mul", 1), ("and", 1), ("max", -np.inf), ("min", np.inf)):
            same = is_var(other) and other.aval.shape == eqn.outvars[0].aval.shape
            return other if same else None
    return operands[0] if name == "sub" and numbers[1] == 0 else None


def in_its_place(level: Level, tree: Tree, found: Found) -> Edit:
    """The loop in place of the tree, with its gradient if the program has one."""
    n, m = len(tree.elements), len(tree.constants)
    outputs, read, wanted = list(found.prefixes), list(found.cotangents), list(found.totals)
    loop = PrefixLoop(tree, sorted({*outputs, *read}))

    def computed(*x: Any) -> list[Any]:
        def prefixes(*moving: Any) -> list[Any]:
            elements = list(x[:n])
            for k, v in zip(wanted, moving, strict=True):
                elements[k] = v
            return loop(elements, x[n : n + m])

        moving = [x[k] for k in wanted]
        if not wanted:
            values = dict(zip(loop.wanted, prefixes(), strict=True))
            return [values[k] for k in outputs]
        values, pull = jax.vjp(prefixes, *moving)
        given = dict(zip(read, x[n + m :], strict=True))
        cotangents = pull([given.get(k, jnp.zeros_like(v)) for k, v in zip(loop.wanted, values, strict=True)])
        values = dict(zip(loop.wanted, values, strict=True))
        return [*(values[k] for k in outputs), *cotangents]

    builder = Builder(tree.like)
    atoms = builder.call(computed, *tree.elements, *tree.constants, *found.cotangents.values())
    results: dict[Var, Atom] = {}
    for var, atom in zip(found.prefixes.values(), atoms, strict=False):
        results[var] = builder.as_weak_as(var, atom)
    for total, atom in zip(found.totals.values(), atoms[len(outputs) :], strict=True):
        (whole,) = builder.call(lambda *terms: sum(terms[1:], terms[0]), atom, *total.others)
        results[total.var] = builder.as_weak_as(total.var, whole)
    return Edit(max(found.gone), found.gone, builder.eqns, results, found.gone)
