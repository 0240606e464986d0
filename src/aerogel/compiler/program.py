"""Programs: how they are taken apart and put together.

A *program* is a closed jaxpr. The functions here keep everything of an equation that they do not change: its
parameters, its context, its source line. New equations are made by tracing a small function (`Builder.call`), never
by naming parameters of JAX's primitives, so that they have the form that this version of JAX gives them.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from .small_traces import traced

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Program = ClosedJaxpr
T = TypeVar("T")
Readers = Mapping[Var, list[int]]
Makers = Mapping[Var, int]


def remembered(of: Callable[[Jaxpr], T]) -> Callable[[Jaxpr], T]:
    """`of`, computed once for each jaxpr, and kept as long as that lives.

    All passes ask for the same tables of the levels that they leave as they are. What `of` returns is nobody's to
    change, and must not hold the jaxpr.
    """
    known: weakref.WeakKeyDictionary[Jaxpr, T] = weakref.WeakKeyDictionary()

    @wraps(of)
    def recall(jaxpr: Jaxpr) -> T:
        found = known.get(jaxpr, known)
        if found is known:
            found = known[jaxpr] = of(jaxpr)
        return cast(T, found)

    return recall


def is_var(atom: Atom) -> "TypeIs[Var]":
    """Whether an atom is a variable (and not a literal)."""
    return not isinstance(atom, Literal)


def substitute(atom: Atom, env: dict[Var, Atom]) -> Atom:
    """The atom that stands for `atom` under the renaming `env`."""
    return atom if isinstance(atom, Literal) else env.get(atom, atom)


def rename(eqn: JaxprEqn, env: dict[Var, Atom]) -> JaxprEqn:
    """`eqn` with its inputs renamed; the same object when nothing changes."""
    if not any(x in env for x in eqn.invars if not isinstance(x, Literal)):
        return eqn
    invars = [substitute(x, env) for x in eqn.invars]
    if all(a is b for a, b in zip(invars, eqn.invars, strict=True)):
        return eqn
    return eqn.replace(invars=invars, effects=_jax.rename_effects(eqn.effects, env))


def copy_equation(eqn: JaxprEqn, env: dict[Var, Atom]) -> JaxprEqn:
    """`eqn` with renamed inputs and fresh outputs, which are added to `env`."""
    outvars = [v if isinstance(v, _jax.DropVar) else _jax.new_var(v.aval) for v in eqn.outvars]
    new = eqn.replace(
        invars=[substitute(x, env) for x in eqn.invars],
        outvars=outvars,
        effects=_jax.rename_effects(eqn.effects, env),
    )
    env.update(zip(eqn.outvars, outvars, strict=True))
    return new


class Builder:
    """Equations under construction; `like` gives the new ones their source line and context."""

    def __init__(self, like: JaxprEqn):
        self.like = like
        self.eqns: list[JaxprEqn] = []

    def call(self, fun: Callable[..., Any], *atoms: Atom) -> list[Atom]:
        """Results of `fun` (array functions with stated dtypes, returning one array or a sequence) at `atoms`."""
        closed = traced(fun, [x.aval for x in atoms], self.like)
        assert not closed.consts, "a small function of the compiler closed over an array"
        return self.inline(closed.jaxpr, atoms, like=self.like)

    def inline(self, jaxpr: Jaxpr, atoms: Sequence[Atom], like: JaxprEqn | None = None) -> list[Atom]:
        """Results of `jaxpr` at `atoms`; with `like`, every equation takes its source line and context."""
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, atoms, strict=True))
        for eqn in jaxpr.eqns:
            new = copy_equation(eqn, env)
            self.eqns.append(new if like is None else new.replace(source_info=like.source_info, ctx=like.ctx))
        return [substitute(x, env) for x in jaxpr.outvars]

    def as_weak_as(self, var: Var, atom: Atom) -> Atom:
        """`atom`, of the type of `var`, with its weakness."""
        weak = bool(getattr(var.aval, "weak_type", False))
        if weak == bool(getattr(atom.aval, "weak_type", False)):
            return atom
        return self.call(lambda v: _jax.convert_element_type(v, var.aval.dtype, weak), atom)[0]


@remembered
def users(jaxpr: Jaxpr) -> Readers:
    """For each variable the indices of the equations that read it; -1 stands for the results."""
    table: dict[Var, list[int]] = {}
    for index, eqn in enumerate(jaxpr.eqns):
        for x in {x for x in eqn.invars if is_var(x)}:
            table.setdefault(x, []).append(index)
    for x in {x for x in jaxpr.outvars if is_var(x)}:
        table.setdefault(x, []).append(-1)
    return table


@remembered
def producers(jaxpr: Jaxpr) -> Makers:
    """For each variable that an equation makes, the index of that equation."""
    return {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}


def depends_on(jaxpr: Jaxpr, seeds: Iterable[Var]) -> set[Var]:
    """All variables that are computed from one of `seeds`, these included."""
    late = set(seeds)
    for eqn in jaxpr.eqns:
        if any(is_var(x) and x in late for x in eqn.invars):
            late.update(eqn.outvars)
    return late


class Cyclic(ValueError):
    """Equations that wait for each other."""


def schedule(eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """The equations in an order in which each comes after what it reads, as near to the given order as possible.

    Equations with effects keep their order.

    Raises:
        Cyclic: there is none.
    """
    made = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
    before: list[list[int]] = []
    last_effect: int | None = None
    for i, eqn in enumerate(eqns):
        needs = [made[x] for x in eqn.invars if is_var(x) and x in made]
        if eqn.effects:
            needs += [] if last_effect is None else [last_effect]
            last_effect = i
        before.append(needs)
    order: list[JaxprEqn] = []
    state = [0] * len(eqns)  # 0: new, 1: waiting for what it needs, 2: placed
    for root in range(len(eqns)):
        stack = [root] if state[root] == 0 else []
        while stack:
            i = stack[-1]
            if state[i] == 0:
                state[i] = 1
                waiting = [j for j in before[i] if state[j] != 2]
                if any(state[j] == 1 for j in waiting):
                    raise Cyclic("an equation needs its own result")
                stack.extend(reversed(waiting))
            else:
                stack.pop()
                if state[i] == 1:
                    state[i] = 2
                    order.append(eqns[i])
    return order


def with_equations(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], outvars: Sequence[Atom] | None = None) -> Jaxpr:
    """`jaxpr` with other equations (and results)."""
    outs = jaxpr.outvars if outvars is None else outvars
    return _jax.new_jaxpr(jaxpr, jaxpr.invars, outs, list(eqns), jaxpr.constvars)


def inner_jaxprs(eqn: JaxprEqn) -> list[Jaxpr]:
    """The jaxprs in an equation's parameters."""
    if _jax.is_simple(eqn.primitive):
        return []
    return [j.jaxpr if isinstance(j, ClosedJaxpr) else j for j in _jax.jaxprs_in_params(eqn.params)]


@remembered
def bodies(jaxpr: Jaxpr) -> Sequence[tuple[JaxprEqn, list[Jaxpr]]]:
    """The equations of one level that hold jaxprs, with these."""
    found = ((eqn, inner_jaxprs(eqn)) for eqn in jaxpr.eqns)
    return [(eqn, inner) for eqn, inner in found if inner]


def inner_levels(jaxpr: Jaxpr) -> list[Jaxpr]:
    """The jaxprs in the equations of one level."""
    return [inner for _, held in bodies(jaxpr) for inner in held]


@remembered
def count_equations(jaxpr: Jaxpr) -> int:
    """How many equations a jaxpr holds, nested ones included (each nested jaxpr as often as it stands there)."""
    return len(jaxpr.eqns) + sum(map(count_equations, inner_levels(jaxpr)))


def where(eqn: JaxprEqn) -> str:
    """The user's line that made an equation, as "file.py:12 in f"; "" when it is no line of the user's."""
    found = _jax.source_lines(eqn)
    if found is None:
        return ""
    path, line, function = found
    return f"{path.rsplit('/', 1)[-1]}:{line} in {function.rsplit('.', 1)[-1]}"
