"""The derivative of what a rule writes, in the place of that of its pattern."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from ... import _jax
from ..._jax import Atom, ClosedJaxpr, JaxprEqn, Var
from ..differentiated import Differentiated, Mode, differentiated
from ..level import Edit
from ..program import Builder, is_var
from ..record import record
from ..small_traces import traced
from ..written_derivatives import Equations, NotWritten, ReadElsewhere, Written, places_before, written_derivative
from .kept_values import modes_of
from .rule import Rule
from .traces import operands_given
from .written import fitted, inlined


@record
class Way:
    """One way of differentiating a pattern.

    Attributes:
        mode: cotangents back, or tangents along.
        of_ones: whether these are ones.
        moved: the operands by which it is differentiated.
        outs: the results that have cotangents, by number.
        many: how many cotangents or tangents there are, on a leading axis; 0 for one without an axis.
    """

    mode: Mode
    of_ones: bool
    moved: tuple[Var, ...]
    outs: tuple[int, ...]
    many: int = 0


@record
class Differentiable:
    """A pattern at a site, and what a rule writes there.

    Attributes:
        rule: the rule.
        atoms: the operands.
        plain: equations that make the pattern's results of them; the last ones stand nowhere if nothing reads these.
        made: what the results are called in `plain`.
        after: what the rule writes, as a function of those operands that are no literals.
        places: of those of the equations that the level has for certain.
        free: values of these that others may read, too.
        within: the transformations that wrote what the level stands in.
    """

    rule: Rule
    atoms: Sequence[Atom]
    plain: Sequence[JaxprEqn]
    made: Sequence[Var]
    after: Callable[..., Sequence[Any]]
    places: frozenset[int]
    free: frozenset[Var]
    within: frozenset[str | None]

    @cached_property
    def operands(self) -> list[Var]:
        """The operands that are no numbers, each once."""
        return [x for x in dict.fromkeys(self.atoms) if is_var(x)]

    def edit(self, equations: Equations, place: int) -> Edit:
        """At a place of the level: the rule's derivative for the one that it has.

        Raises:
            NotWritten: it has none.
            ReadElsewhere: something else reads what goes.
        """
        refused = NotWritten()
        for way in (*self._ways(), *self._many(equations)):
            try:
                return self._edit(equations, place, way)
            except ReadElsewhere as error:
                refused = error
            except NotWritten:
                continue
        raise refused

    def places_before(self, equations: Equations) -> frozenset[int]:
        """Where the level has the pattern, and what else JAX's derivative takes of the operands."""
        return self.places.union(*(places_before(equations, self._differentiated(equations, w)) for w in self._ways()))

    def _differentiated(self, equations: Equations, way: Way) -> Differentiated:
        made = [self.made[k] for k in way.outs]
        jaxpr = _jax.new_jaxpr(equations.level.jaxpr, list(way.moved), made, self.plain)
        return differentiated(ClosedJaxpr(jaxpr, ()), len(way.moved), way.mode, way.of_ones, way.many)

    def _ways(self) -> Iterator[Way]:
        """The ways in which JAX may have differentiated it: by all and of all, or by one and of one."""
        smooth = tuple(x for x in self.operands if jnp.issubdtype(x.aval.dtype, jnp.inexact))
        outs = tuple(k for k, v in enumerate(self.made) if jnp.issubdtype(v.aval.dtype, jnp.inexact))
        if not smooth or not outs:
            return
        for some in [outs, *((k,) for k in outs if len(outs) > 1)]:
            for of_ones in (False, True):
                yield Way(Mode.REVERSE, of_ones, smooth, some)
        if Mode.FORWARD in modes_of(self.rule):
            for moved in [smooth, *((x,) for x in smooth if len(smooth) > 1)]:
                yield Way(Mode.FORWARD, False, moved, outs)

    def _many(self, equations: Equations) -> Iterator[Way]:
        """The same for several cotangents or tangents at once, as many as there may be."""
        for way in self._ways():
            like = [self.made[k] for k in way.outs] if way.mode is Mode.REVERSE else way.moved
            first = like[0].aval
            shapes = {v.aval.shape for v in equations.level.made_by if getattr(v.aval, "dtype", None) == first.dtype}
            for many in sorted({shape[0] for shape in shapes if shape[1:] == first.shape and len(shape) > first.ndim}):
                if not way.of_ones:
                    yield replace(way, many=many)

    def _edit(self, equations: Equations, place: int, way: Way) -> Edit:
        level = equations.level
        new = self._differentiated(equations, way)
        results = [v for v in self.made if v in level.made_by]
        written = written_derivative(equations, new, results, self.places, self.free)
        makers = [level.eqns[level.made_by[v]] for v in written.terms if v in level.made_by]
        wanted = "transpose" if way.mode is Mode.REVERSE else "jvp"
        is_written = wanted in self.within or any(_jax.derivative_of(eqn) == wanted for eqn in makers)
        if not is_written or not written.terms.isdisjoint(results):
            raise NotWritten  # by JAX: it may be anything
        builder = Builder(level.eqns[place])
        values, derivatives = self._new(builder, way, written)
        stand = {v: fitted(builder, x, v.aval) for v, x in zip(self.made, values, strict=True) if v in results}
        for k, total in written.results.items():
            new_value = total.with_derivative(builder, fitted(builder, derivatives[k], total.value.aval))
            stand[total.value] = fitted(builder, new_value, total.value.aval)
        added = frozenset().union(*(total.places for total in written.results.values()))
        return Edit(place, frozenset(), builder.eqns, stand, self.places | written.places | added)

    def _new(self, builder: Builder, way: Way, written: Written) -> tuple[list[Atom], list[Atom]]:
        """What the rule makes, and the derivative of that."""
        args = [*way.moved, *(x for x in self.operands if x not in way.moved)]
        count, results = len(way.moved), len(self.made)
        at = [next(i for i, x in enumerate(args) if x is self.atoms[k]) for k in operands_given(self.atoms)]
        given = written.in_full(builder)

        def run(*xs: Any) -> tuple[Any, ...]:
            return tuple(self.after(*(xs[k] for k in at)))

        def along(*xs: Any) -> Sequence[Any]:
            def one(*tangents: Any) -> Any:
                return jax.jvp(lambda *some: run(*some, *xs[count : len(args)]), xs[:count], tangents)

            outs, tangents = (jax.vmap(one, out_axes=(None, 0)) if way.many else one)(*xs[len(args) :])
            return [*outs, *tangents]

        if way.mode is Mode.FORWARD:
            found = self._called(builder, along, *args, *given)
            return found[:results], found[results:]
        tree: Any = None

        def forward(*xs: Any) -> list[Any]:
            nonlocal tree
            outs, back = jax.vjp(lambda *some: run(*some, *xs[count:]), *xs[:count])
            leaves, tree = jax.tree.flatten(back)
            return [*outs, *leaves]

        def backward(*xs: Any) -> Sequence[Any]:
            back = jax.tree.unflatten(tree, xs[: len(xs) - len(given)])

            def one(*cotangents: Any) -> Sequence[Any]:
                full = [
                    jnp.full(v.aval.shape, way.of_ones and k in way.outs, v.aval.dtype) for k, v in enumerate(self.made)
                ]
                for k, x in zip(way.outs, cotangents, strict=False):
                    full[k] = x
                return back(tuple(full))

            return (jax.vmap(one) if way.many else one)(*xs[len(xs) - len(given) :])

        values = self._called(builder, forward, *args)
        return values[:results], self._called(builder, backward, *values[results:], *given)

    def _called(self, builder: Builder, function: Callable[..., Any], *atoms: Atom) -> list[Atom]:
        closed = traced(function, [x.aval for x in atoms], builder.like)
        return inlined(builder, self.rule, closed.jaxpr, closed.consts, atoms)
