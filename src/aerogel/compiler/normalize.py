"""One form of a program before anything is matched: calls inlined, dead code gone, repeated values computed once.

What XLA would do anyway is done here so that the passes see through it: a value used twice is one variable, a result
that nobody reads has no users. Only the form changes, never a number.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from .late import written_out
from .normal_form.branch_results import given_once, known_results
from .normal_form.closed_over import asks_nothing, without_closures
from .normal_form.equal_constants import equal_constants_once
from .normal_form.identities import simplify_equation
from .normal_form.mapped_axes import reduced_here
from .normal_form.quotients import chosen_quotient
from .normal_form.tidy import stacked_once, tidy_loop
from .normal_form.ties import Ties
from .normal_form.unread_payloads import without_unread_payloads
from .program import (
    Builder,
    Program,
    bodies,
    copy_equation,
    inner_jaxprs,
    inner_levels,
    is_var,
    remembered,
    rename,
    substitute,
    where,
    with_equations,
)
from .report import Decision
from .same import KEPT_APART, literal_key, param_key
from .views import Views, small_integers

# A call that stands in a program once is always inlined. One that is called from several places stays a function
# (JAX lowers it once) unless its body is this small: jnp's own helpers (`where`, `clip`, ...) are.
SMALL_CALL = 24
SLICED = "rows at places that are known are a slice"

# Not `max` and `min`: of 0 and -0 a backend may give the first.
COMMUTATIVE = frozenset("add add_any mul and or xor eq ne".split())
LOOPS_AND_BRANCHES = frozenset(
    {"scan", "while", "cond", "jit", "closed_call", "eval_jaxpr", "checkpoint", "remat2", "remat", "with_reverse"}
)


def normalize(program: Program, over_devices: bool = False) -> tuple[Program, list[Decision]]:
    """The same program in normal form, nested loops and branches included; the same object if it is already.

    Where its values may be spread `over_devices`, the outputs of its loops stay as many as they are: two readers of one
    array may want it in different places. The decisions tell where a loop lost something that it stacked or carried:
    XLA does not do that.
    """
    program = equal_constants_once(without_closures(program))
    jaxpr, decisions = program.jaxpr, list[Decision]()
    known = small_integers(dict(zip(program.jaxpr.constvars, program.consts, strict=True)))
    while True:
        live = drop_dead(jaxpr)  # first: what is dead calls nobody
        normalizer = Normalizer(live, over_devices, known)
        new = normalizer.run(live)
        decisions += normalizer.decisions
        if new is jaxpr or not normalizer.calls_left:
            return (program if new is program.jaxpr else ClosedJaxpr(new, program.consts)), decisions
        jaxpr = new


class Normalizer:
    """One walk over a program; remembers nested jaxprs so that shared ones stay shared: JAX lowers each once.

    Its result changes in a second walk only if there are `calls_left`: one may be the only one of its function now.
    """

    def __init__(self, jaxpr: Jaxpr, over_devices: bool = False, known: Mapping[Var, np.ndarray] | None = None):
        self.over_devices = over_devices
        self.known = known
        self.calls: Counter[int] = Counter()
        self.done: dict[int, Any] = {}
        self.kept: list[Any] = []  # keeps the keys of `done` alive
        self.decisions: list[Decision] = []
        self.calls_left = False
        self._count_calls(jaxpr, set())

    def _count_calls(self, jaxpr: Jaxpr, seen: set[int]) -> None:
        if id(jaxpr) in seen:
            return
        seen.add(id(jaxpr))
        for inner in inner_levels(jaxpr):
            self.calls[id(inner)] += 1
            self._count_calls(inner, seen)

    def run(self, jaxpr: Jaxpr) -> Jaxpr:
        """The normal form of one jaxpr."""
        while jaxpr not in _normal:
            merged = self._merge(self._inline(jaxpr))
            jaxpr = without_unread_payloads(drop_dead(merged))
            # If not, two equations that differed only in what nobody reads may be equal now.
            if jaxpr is merged:
                if not self.over_devices and not holds_calls(jaxpr):
                    _normal.add(jaxpr)
                break
        return jaxpr

    def nested(self, jaxpr: ClosedJaxpr | Jaxpr) -> ClosedJaxpr | Jaxpr:
        """The normal form of a nested jaxpr, computed once for each."""
        if id(jaxpr) not in self.done:
            opened = open_jaxpr(jaxpr)
            if opened is jaxpr or not isinstance(jaxpr, ClosedJaxpr):  # since jax 0.11 each is closed and open
                new = self.run(opened)
            else:
                inner = open_jaxpr(self.nested(opened))
                new = jaxpr if inner is opened else ClosedJaxpr(inner, jaxpr.consts)
            self.done[id(jaxpr)] = self.done[id(new)] = new
            self.kept += (jaxpr, new)
        return self.done[id(jaxpr)]

    def _inline(self, jaxpr: Jaxpr) -> Jaxpr:
        eqns: list[JaxprEqn] = []
        env: dict[Var, Atom] = {}
        changed = False
        for eqn in jaxpr.eqns:
            new = rename(map_inner(eqn, self.nested), env)
            changed |= new is not eqn
            operation = written_out(new)
            if operation is not None:
                changed = self.calls_left = True  # its own calls are not counted yet
                builder = Builder(new)
                env.update(zip(new.outvars, builder.inline(operation, new.invars, like=new), strict=True))
                eqns += builder.eqns
            elif self._is_inlined(eqn, new):
                changed = True
                inline_call(new, eqns, env)
            else:
                eqns.append(new)
                self.calls_left |= is_plain_call(new)
        if not changed:
            return jaxpr
        return with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])

    def _is_inlined(self, old: JaxprEqn, new: JaxprEqn) -> bool:
        if not is_plain_call(new):
            return False
        body = new.params["jaxpr"].jaxpr
        return self.calls[id(old.params["jaxpr"].jaxpr)] == 1 or (len(body.eqns) <= SMALL_CALL and not bodies(body))

    def _merge(self, jaxpr: Jaxpr) -> Jaxpr:
        """Equal equations become one, and equations that do nothing become their input; the same object if none."""
        env: dict[Var, Atom] = {}
        seen: dict[Any, list[Var]] = {}
        eqns: list[JaxprEqn] = []
        views, ties = Views(self.known), Ties()
        for old in jaxpr.eqns:
            for eqn in views.simplest(without_empty_sharding(rename(old, env))):
                for one in chosen_quotient(ties.simplest(eqn), views.makers):
                    self._add(one, env, seen, eqns, views.makers)
        self.decisions += (
            Decision("views", SLICED, where(eqn), True, "they are evenly spaced") for eqn in views.sliced
        )
        if not env and len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])

    def _add(
        self,
        eqn: JaxprEqn,
        env: dict[Var, Atom],
        seen: dict[Any, list[Var]],
        eqns: list[JaxprEqn],
        makers: Mapping[Var, JaxprEqn],
    ) -> None:
        """Adds an equation to `eqns`; or, to `env`, what stands for its results: they are made already."""
        if eqn.effects or eqn.primitive.name in KEPT_APART:
            eqns.append(eqn)
            return
        eqn = reduced_here(doubled(with_static_starts(rename(eqn, env))))
        same = simplify_equation(eqn, makers)
        if same is not None:
            env[eqn.outvars[0]] = same
            return
        key = equation_key(eqn)
        found = None if key is None else seen.get(key)
        if found is not None:
            env.update((v, substitute(x, env)) for v, x in zip(eqn.outvars, found, strict=True))
            return
        if key is not None:
            seen[key] = eqn.outvars
        if eqn.primitive.name == "cond" and not self.over_devices:
            known = known_results(eqn)
            env.update(known)
            self.decisions += given_once(eqn, known)
        eqns.append(self._tidy(eqn, env, makers) if eqn.primitive.name == "scan" else eqn)

    def _tidy(self, eqn: JaxprEqn, env: dict[Var, Atom], makers: Mapping[Var, JaxprEqn]) -> JaxprEqn:
        """A loop without what it does twice, its body in normal form; `env` takes the results that it makes no more.

        What is read once, or is a constant now, may make more of the body equal. Each round leaves the loop with fewer
        carries, inputs or outputs.
        """
        before, gone = eqn, dict[Var, Atom]()
        while (tidied := tidy_loop(eqn, makers, self.over_devices)) is not None:
            eqn = map_inner(tidied[0], self.nested)
            gone = {v: substitute(x, tidied[1]) for v, x in gone.items()} | tidied[1]
        env.update(gone)
        self.decisions += stacked_once(before, eqn)
        return eqn


# What is in normal form in every program: how often a call stands in one decides about calls alone.
_normal: weakref.WeakSet[Jaxpr] = weakref.WeakSet()


@remembered
def holds_calls(jaxpr: Jaxpr) -> bool:
    """Whether a `jit` stands in a jaxpr, or in its loops and branches, at any depth."""
    found = ((eqn.primitive.name, held) for eqn, held in bodies(jaxpr) if eqn.primitive.name in LOOPS_AND_BRANCHES)
    return any(name == "jit" or any(map(holds_calls, held)) for name, held in found)


def is_plain_call(eqn: JaxprEqn) -> bool:
    """Whether an equation is a `jit` that can be inlined: it asks nothing of the compiler, and closes over nothing."""
    if not asks_nothing(eqn):
        return False
    inner = eqn.params["jaxpr"]
    return (
        not inner.consts
        and not inner.jaxpr.constvars
        # a ref that lives inside is no effect of the call, which may be dropped; its equations may not
        and (_jax.has_effects(eqn) or not any(_jax.has_effects(one) for one in inner.jaxpr.eqns))
    )


def inline_call(eqn: JaxprEqn, eqns: list[JaxprEqn], env: dict[Var, Atom]) -> None:
    """Appends the body of a call to `eqns`; its results are added to `env`."""
    body = eqn.params["jaxpr"].jaxpr
    inner: dict[Var, Atom] = dict(zip(body.invars, eqn.invars, strict=True))
    for one in body.eqns:
        eqns.append(_jax.under_scope(copy_equation(one, inner), eqn, eqn.params["name"]))
    for var, out in zip(eqn.outvars, body.outvars, strict=True):
        env[var] = substitute(out, inner)


def with_calls_open(jaxpr: Jaxpr) -> Jaxpr:
    """A level with its functions that have derivatives of their own written out: nobody asks for these any more."""
    eqns: list[JaxprEqn] = []
    env: dict[Var, Atom] = {}
    for eqn in jaxpr.eqns:
        called = eqn.params.get("call_jaxpr") if eqn.primitive.name.startswith("custom_jvp_call") else None
        if called is None or called.consts or called.jaxpr.effects:
            eqns.append(rename(eqn, env))
            continue
        inner: dict[Var, Atom] = dict(zip(called.jaxpr.invars, (substitute(x, env) for x in eqn.invars), strict=True))
        eqns += (copy_equation(one, inner) for one in called.jaxpr.eqns)
        env.update(zip(eqn.outvars, (substitute(x, inner) for x in called.jaxpr.outvars), strict=True))
    if not env:
        return jaxpr
    opened = with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])
    return Normalizer(opened).run(opened)


def map_inner(eqn: JaxprEqn, change: Callable[[Any], Any]) -> JaxprEqn:
    """`eqn` with the nested jaxprs changed that it is safe to change: loops, branches and plain calls.

    Not those of custom derivatives (their rules refer to the original), kernels and `shard_map`.
    """
    if eqn.primitive.name not in LOOPS_AND_BRANCHES:
        return eqn

    def change_inner(old: Any) -> Any:
        new = change(old)
        # A dead read of a ref may have gone; the equation's effects say that it is there. What touches refs stays.
        return new if not eqn.effects or _jax.same_effects(open_jaxpr(old), open_jaxpr(new)) else old

    params = {}
    changed = False
    for key, value in eqn.params.items():
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            new: Any = change_inner(value)
            changed |= new is not value
        elif isinstance(value, tuple) and any(isinstance(x, (ClosedJaxpr, Jaxpr)) for x in value):
            new = tuple(change_inner(x) if isinstance(x, (ClosedJaxpr, Jaxpr)) else x for x in value)
            changed |= any(a is not b for a, b in zip(new, value, strict=True))
        else:
            new = value
        params[key] = new
    return eqn.replace(params=params) if changed else eqn


def open_jaxpr(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """The equations and variables of either kind."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def without_empty_sharding(eqn: JaxprEqn) -> JaxprEqn:
    """A cast that a derivative transposed names the sharding of its result, also where there is no mesh at all."""
    mesh = getattr(eqn.params.get("sharding"), "mesh", None)
    if eqn.primitive.name != "convert_element_type" or mesh is None or not mesh.empty:
        return eqn
    return eqn.replace(params=dict(eqn.params, sharding=None))


def with_static_starts(eqn: JaxprEqn) -> JaxprEqn:
    """A `dynamic_slice` whose starts are literals is a `slice`: `xs[jnp.array(3)]` reads what `xs[3]` does."""
    if eqn.primitive.name != "dynamic_slice" or any(is_var(x) for x in eqn.invars[1:]):
        return eqn
    if _jax.explicit_mesh(eqn.outvars[0].aval):
        return eqn
    operand, sizes = eqn.invars[0], eqn.params["slice_sizes"]
    limits = [n - m for n, m in zip(operand.aval.shape, sizes, strict=True)]
    given = [int(x.val) for x in eqn.invars[1:] if isinstance(x, Literal)]
    starts = [min(max(start, 0), limit) for start, limit in zip(given, limits, strict=True)]
    builder = Builder(eqn)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    builder.call(lambda x: lax.slice(x, starts, ends), operand)
    return builder.eqns[0].replace(outvars=eqn.outvars) if len(builder.eqns) == 1 else eqn


def doubled(eqn: JaxprEqn) -> JaxprEqn:
    """`x + x` in a derivative, that of `x * x`, is `2 * x`: a product, through which sums of products are seen.

    Where a program says `x + x`, somebody may have wanted that.
    """
    if eqn.primitive.name != "add_any" or eqn.invars[0] is not eqn.invars[1] or not is_var(eqn.invars[0]):
        return eqn
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return eqn  # complex: an infinite part times 0 is no number
    if _jax.explicit_mesh(eqn.outvars[0].aval):
        return eqn  # of what is still to be reduced over devices, JAX multiplies nothing
    builder = Builder(eqn)
    builder.call(lambda x: x * 2, eqn.invars[0])
    return builder.eqns[0].replace(outvars=eqn.outvars)


def equation_key(eqn: JaxprEqn) -> Any:
    """Two equations with one key compute the same; None when that cannot be told."""
    operands = tuple(_atom_key(x) for x in eqn.invars)
    try:
        key = (
            eqn.primitive,
            frozenset(operands) if eqn.primitive.name in COMMUTATIVE else operands,
            tuple((k, param_key(v)) for k, v in sorted(eqn.params.items())),
            tuple((isinstance(v, _jax.DropVar), v.aval) for v in eqn.outvars),
            eqn.ctx,
        )
        hash(key)
    except TypeError:
        return None
    return key


def _atom_key(x: Atom) -> Any:
    return id(x) if is_var(x) else literal_key(x)


def drop_dead(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` without what nobody reads, inside loops too (JAX's own dead-code rules); the same object if nothing."""
    new = _jax.drop_dead(jaxpr)
    return jaxpr if _as_long(new, jaxpr) else new


def _as_long(new: Jaxpr, old: Jaxpr) -> bool:
    """Whether a jaxpr from which nobody took anything but equations and their results has all of them."""
    return new is old or (len(new.eqns) == len(old.eqns) and all(map(_same_size, new.eqns, old.eqns)))


def _same_size(new: JaxprEqn, old: JaxprEqn) -> bool:
    if new is old:
        return True
    return len(new.outvars) == len(old.outvars) and all(map(_as_long, inner_jaxprs(new), inner_jaxprs(old)))
