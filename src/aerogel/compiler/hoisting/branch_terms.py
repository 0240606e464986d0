"""What branches give to the sums of a loop is made behind them: there it can be made once, of the sum of all steps.

A weight that a branch reads gets a whole matrix from each step of the backward loop, zeros if the step took another
branch. What that is linear in, or a product of, is often a vector: this is what the branch gives then, or zeros.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, JaxprEqn, Var

from ..loop import Loop, is_float
from ..loop_copy import LoopCopy
from ..normalize import drop_dead
from ..program import Builder, copy_equation, is_var, substitute
from ..record import record
from .branch_tails import Tail, fixed_in, tail_of, values_of
from .gathered import gathered
from .hoist import Replacement
from .lift import LEAST_STEPS
from .linear_sums import Body, LinearSum


@record
class Terms:
    """What a `cond` gives to sums of its loop.

    Attributes:
        eqn: the `cond`.
        carries: the carry to which a result is added, by its position.
        branches: the tail of each branch; None of one that gives zeros.
    """

    eqn: JaxprEqn
    carries: Mapping[int, int]
    branches: tuple[Tail | None, ...]


def opened(
    loop: Loop, body: Body, linear: Callable[[Loop], Sequence[LinearSum]]
) -> tuple[Replacement, list[JaxprEqn]] | None:
    """The loop with terms of its sums made behind the branches, and what is; None where none pays.

    Args:
        loop: any loop.
        body: its body.
        linear: finds what of a loop's sums will be done once, after the loop.
    """
    if loop.length < LEAST_STEPS or not any(eqn.primitive.name == "cond" for eqn in loop.body.eqns):
        return None
    found = _terms(loop, body)
    if not found:
        return None
    trial = _Opening(loop, body)
    made = next(eqn for eqn in trial.run(found).eqns if eqn.primitive.name == "scan")
    once = {i for one in linear(Loop(made)) for i in one.after}
    kept = {key for key, place in trial.places.items() if place in once}
    final = _terms(loop, body, kept)
    if not final:
        return None
    eqns = [
        terms.eqn.params["branches"][b].jaxpr.eqns[i]
        for terms in final
        for b, tail in enumerate(terms.branches)
        if tail is not None
        for i in sorted(tail.after)
    ]
    return _Opening(loop, body).run(final), eqns


def _terms(loop: Loop, body: Body, once: Collection[tuple[int, int, int]] | None = None) -> list[Terms]:
    """The `cond`s of which something can be done behind them: of what is linear, `once` alone, unless that is None."""
    added = _added(loop, body)
    found: list[Terms] = []
    for c, eqn in enumerate(loop.body.eqns):
        carries = {k: added[v] for k, v in enumerate(eqn.outvars) if v in added}
        if eqn.primitive.name != "cond" or eqn.effects or not carries:
            continue
        branches: Sequence[ClosedJaxpr] = eqn.params["branches"]
        if any(branch.consts for branch in branches):
            continue
        tails = []
        for b, branch in enumerate(branches):
            values = values_of(branch.jaxpr, eqn, body)
            if all(values.is_zero(branch.jaxpr.outvars[k]) for k in carries):
                tails.append(None)
            else:
                mine = None if once is None else {i for one, other, i in once if (one, other) == (c, b)}
                tails.append(tail_of(values, carries, mine))
        if any(tails) and all(tail is None or tail.after for tail in tails):
            found.append(Terms(eqn, carries, tuple(tails)))
    return found


def _added(loop: Loop, body: Body) -> dict[Var, int]:
    """What is added to a carry of floats and read by nothing else: the carry."""
    found: dict[Var, int] = {}
    for k in range(len(loop.init)):
        whole = gathered(loop, k, body.readers, body.equations)
        if whole is not None and is_float(whole.own.aval.dtype):
            found.update((x, k) for x in whole.terms if len(body.readers[x]) == 1 and whole.terms.count(x) == 1)
    return found


@dataclass
class _Opening:
    """A loop under construction with the tails of its branches behind them.

    What is made of a sum of zeros, with others that may be infinite, is no zero: a term that will be made of the sum of
    all steps has a carry of its own, which counts only if any step took the branch.

    Attributes:
        places: the place in the new body of each equation behind a branch, by `cond`, branch and place there.
        gone: terms that are added no more.
        apart: a carry, the final value of another one that belongs to it, and whether that counts.
    """

    loop: Loop
    body: Body
    copy: LoopCopy = field(init=False)
    places: dict[tuple[int, int, int], int] = field(init=False, default_factory=dict)
    gone: set[Var] = field(init=False, default_factory=set)
    apart: list[tuple[int, Var, Atom]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.copy = LoopCopy(self.loop)

    def run(self, found: Sequence[Terms]) -> Replacement:
        """What takes the loop's place."""
        mine = {id(terms.eqn): terms for terms in found}
        for c, eqn in enumerate(self.loop.body.eqns):
            if id(eqn) in mine:
                self._open(c, mine[id(eqn)])
            elif not self.gone.isdisjoint(x for x in eqn.invars if is_var(x)):
                self._without(eqn)
            else:
                self.copy.new.body.eqns.append(copy_equation(eqn, self.copy.env))
        self.copy.finish()
        new, results = self.copy.new, dict[Var, Atom]()
        for carry, final, counts in self.apart:
            whole = self.loop.finals[carry]
            (out,) = new.after.call(_plus_if, results.get(whole, whole), final, counts)
            results[whole] = new.after.as_weak_as(whole, out)
        return Replacement(new.equations(), results)

    def _without(self, add: JaxprEqn) -> None:
        """An addition without what is added no more."""
        left = [x for x in add.invars if x not in self.gone]
        if left:
            self.copy.env[add.outvars[0]] = substitute(left[0], self.copy.env)
        else:
            self.gone.update(add.outvars)

    def _open(self, c: int, terms: Terms) -> None:
        """A `cond`, and behind it what its branches gave."""
        new, env, eqn = self.copy.new, self.copy.env, terms.eqn
        given = _giving(terms, env)
        kept = [v for k, v in enumerate(eqn.outvars) if k not in terms.carries]
        new.body.eqns.append(given)
        env.update(zip(kept, given.outvars, strict=False))
        rest, total = given.outvars[len(kept) :], {k: list[Atom]() for k in terms.carries}
        for b, tail in enumerate(terms.branches):
            if tail is None:
                continue
            branch = eqn.params["branches"][b].jaxpr
            values = values_of(branch, eqn, self.body)
            inner = {v: substitute(x, env) for v, x in zip(branch.invars, eqn.invars[1:], strict=True)}
            inner.update(zip(tail.given, rest, strict=False))
            rest = rest[len(tail.given) :]
            for i in sorted(tail.after | fixed_in(values, tail)):
                self.places[c, b, i] = len(new.body.eqns)
                new.body.eqns.append(copy_equation(branch.eqns[i], inner))
            counts = self._taken(eqn, b) if tail.is_once else None
            for k, carry in terms.carries.items():
                if values.is_zero(branch.outvars[k]):
                    continue
                term = substitute(branch.outvars[k], inner)
                if counts is None:
                    total[k].append(term)
                else:
                    self.apart.append((carry, self._summed(term), counts))
        for k, parts in total.items():
            if parts:
                out = reduce(lambda x, y: new.body.call(lax.add, x, y)[0], parts)
                env[eqn.outvars[k]] = new.body.as_weak_as(eqn.outvars[k], out)
            else:
                self.gone.add(eqn.outvars[k])

    def _taken(self, eqn: JaxprEqn, branch: int) -> Atom:
        """Whether any step takes a branch, behind the loop."""
        new, index = self.copy.new, eqn.invars[0]
        stacked = next((x for v, x in zip(self.loop.body_xs, self.loop.xs, strict=True) if v is index), None)
        last = np.int32(len(eqn.params["branches"]) - 1)
        (out,) = new.after.call(
            lambda taken: jnp.any(lax.clamp(np.int32(0), taken, last) == np.int32(branch)),
            new.y(substitute(index, self.copy.env)) if stacked is None else stacked,
        )
        return out

    def _summed(self, term: Atom) -> Var:
        """The sum of a term over all steps."""
        new, aval = self.copy.new, term.aval
        (start,) = new.before.call(lambda: lax.full(aval.shape, 0, aval.dtype))
        total, set_next, final = new.carry(start)
        set_next(*new.body.call(lax.add, total, term))
        return final


def _giving(terms: Terms, env: dict[Var, Atom]) -> JaxprEqn:
    """The `cond` whose branches give what their tails are made of, or zeros for those of others."""
    eqn = terms.eqn
    kept = [k for k in range(len(eqn.outvars)) if k not in terms.carries]
    given = [(b, v) for b, tail in enumerate(terms.branches) if tail is not None for v in tail.given]
    branches: list[ClosedJaxpr] = []
    for b, closed in enumerate(eqn.params["branches"]):
        builder, branch = Builder(eqn), closed.jaxpr
        outs = [v if one == b else _zeros(builder, v) for one, v in given]
        jaxpr = _jax.new_jaxpr(
            branch, branch.invars, [*(branch.outvars[k] for k in kept), *outs], [*branch.eqns, *builder.eqns]
        )
        branches.append(ClosedJaxpr(drop_dead(jaxpr), ()))
    new = copy_equation(eqn, dict(env))
    outvars = [*(new.outvars[k] for k in kept), *(_jax.new_var(v.aval) for _, v in given)]
    return new.replace(outvars=outvars, params=dict(eqn.params, branches=tuple(branches)))


def _zeros(builder: Builder, v: Var) -> Atom:
    (out,) = builder.call(lambda: lax.full(v.aval.shape, 0, v.aval.dtype))
    return builder.as_weak_as(v, out)


def _plus_if(whole: Any, total: Any, counts: Any) -> Any:
    return lax.add(whole, jnp.where(counts, total, lax.full((), 0, total.dtype)))
