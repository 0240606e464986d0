"""A typed view of `scan`, and how a new one is put together.

Nothing outside this file reads or writes the parameters of a scan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from .axes.elementwise import NAMES as ELEMENTWISE
from .cost.primitives import DEAR
from .program import Builder, copy_equation, is_var, substitute
from .record import record

# A step more is little beside this many; of what is light it is always.
MANY_STEPS = 32
SHAPING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice", "iota", "reduce_sum")
LIGHT = frozenset((*ELEMENTWISE, *SHAPING)) - DEAR


@record
class Loop:
    """One `scan` equation, its inputs and outputs by kind."""

    eqn: JaxprEqn

    @property
    def length(self) -> int:
        """Number of steps."""
        return self.eqn.params["length"]

    @property
    def reverse(self) -> bool:
        """Whether index `length - 1` runs first."""
        return self.eqn.params["reverse"]

    @property
    def unroll(self) -> int:
        """How many steps stand in one when XLA gets it."""
        return self.eqn.params["unroll"]

    def unrolled(self, steps: int) -> JaxprEqn:
        """The same loop with so many steps in one when XLA gets it."""
        return self.eqn.replace(params=dict(self.eqn.params, unroll=steps))

    @property
    def body(self) -> Jaxpr:
        """One step: constants, carries, inputs of the step -> carries, outputs of the step."""
        return self.eqn.params["jaxpr"].jaxpr

    def _split_in(self, atoms: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        n, m = _jax.scan_counts(self.eqn.params)
        return list(atoms[:n]), list(atoms[n : n + m]), list(atoms[n + m :])

    @property
    def _carries(self) -> int:
        return _jax.scan_counts(self.eqn.params)[1]

    @property
    def consts(self) -> list[Atom]:
        """What every step reads whole."""
        return self._split_in(self.eqn.invars)[0]

    @property
    def init(self) -> list[Atom]:
        """The carries before the first step."""
        return self._split_in(self.eqn.invars)[1]

    @property
    def xs(self) -> list[Atom]:
        """Inputs with one entry for each step, on a leading axis."""
        return self._split_in(self.eqn.invars)[2]

    @property
    def body_consts(self) -> list[Var]:
        """The constants inside the body."""
        return self._split_in(self.body.invars)[0]

    @property
    def body_carry(self) -> list[Var]:
        """The carries at the start of a step."""
        return self._split_in(self.body.invars)[1]

    @property
    def body_xs(self) -> list[Var]:
        """The inputs of one step."""
        return self._split_in(self.body.invars)[2]

    @property
    def finals(self) -> list[Var]:
        """The carries after the last step."""
        return list(self.eqn.outvars[: self._carries])

    @property
    def ys(self) -> list[Var]:
        """The outputs of all steps, stacked on a leading axis."""
        return list(self.eqn.outvars[self._carries :])

    @property
    def next_carry(self) -> list[Atom]:
        """The carries at the end of a step."""
        return list(self.body.outvars[: self._carries])

    @property
    def body_ys(self) -> list[Atom]:
        """The outputs of one step."""
        return list(self.body.outvars[self._carries :])

    def restacked(self, ys: Sequence[tuple[Atom, Var]]) -> JaxprEqn:
        """The loop with other outputs: pairs of a value of the body and the variable that it is stacked in.

        What only the old outputs needed is dead in the body.
        """
        body = _jax.new_jaxpr(self.body, self.body.invars, [*self.next_carry, *(v for v, _ in ys)], self.body.eqns)
        params = _jax.scan_params(self.eqn.params, ClosedJaxpr(body, ()), len(self.consts), self._carries)
        return self.eqn.replace(outvars=[*self.finals, *(y for _, y in ys)], params=params)

    def run(self, inputs: Sequence[Atom], length: int, ys: Sequence[Var]) -> tuple[JaxprEqn, dict[Var, Var]]:
        """So many steps of the loop on other inputs, which stack those of its outputs that `ys` names.

        The equation, and which of its variables stand for the outputs and the final carries of the loop.
        """
        new = {v: _jax.new_var(v.aval) for v in self.finals}
        new.update((y, _jax.new_var(all_steps(one_step(y.aval), length))) for y in self.ys if y in ys)
        eqn = self.restacked([(v, new[y]) for y, v in zip(self.ys, self.body_ys, strict=True) if y in ys])
        outs = [new[v] for v in (*self.finals, *(y for y in self.ys if y in ys))]
        return eqn.replace(invars=list(inputs), outvars=outs, params=eqn.params | {"length": length}), new


def as_loop(eqn: JaxprEqn) -> Loop | None:
    """The view of an equation that is a scan which may be rebuilt; else None."""
    return Loop(eqn) if eqn.primitive.name == "scan" and why_left(eqn) is None else None


def why_left(scan: JaxprEqn) -> str | None:
    """Why a scan must stay as it is; None if it may be rebuilt."""
    if scan.effects:
        return "its steps have effects"
    if scan.params["jaxpr"].consts:
        return "its body closes over arrays"
    if any(_jax.explicit_mesh(v.aval) for v in scan.outvars):
        return "its results are sharded by their types"
    return None


def with_body(scan: JaxprEqn, change: Callable[[Jaxpr], Jaxpr]) -> JaxprEqn:
    """A scan with another body of the same type."""
    body = change(scan.params["jaxpr"].jaxpr)
    return scan.replace(params=scan.params | {"jaxpr": ClosedJaxpr(body, scan.params["jaxpr"].consts)})


@dataclass
class _Carry:
    init: Atom
    var: Var
    next: Atom | None
    final: Var


def named(var: Var) -> Var:
    """A variable that can be read in place of one that nobody reads."""
    return _jax.new_var(var.aval) if isinstance(var, _jax.DropVar) else var


@dataclass
class LoopBuilder:
    """A new scan under construction: equations before it, in its body, and after it.

    Inputs are asked for one by one and given once each: `const`, `x`, `index`, `carry`, `y`.
    """

    like: JaxprEqn
    length: int
    reverse: bool
    before: Builder = field(init=False)
    body: Builder = field(init=False)
    after: Builder = field(init=False)
    _consts: dict[Any, Var] = field(default_factory=dict)
    _xs: dict[Any, Var] = field(default_factory=dict)
    _carries: list[_Carry] = field(default_factory=list)
    _ys: list[tuple[Atom, Var]] = field(default_factory=list)
    _index: Var | None = None

    def __post_init__(self) -> None:
        self.before, self.body, self.after = Builder(self.like), Builder(self.like), Builder(self.like)

    def const(self, atom: Atom) -> Atom:
        """The atom, inside the body, of a value that every step reads whole."""
        if isinstance(atom, Literal):
            return atom
        if atom not in self._consts:
            self._consts[atom] = _jax.new_var(atom.aval)
        return self._consts[atom]

    def x(self, stacked: Var) -> Var:
        """One step's entry of a value with a leading axis of the loop's length."""
        if stacked not in self._xs:
            self._xs[stacked] = _jax.new_var(one_step(stacked.aval))
        return self._xs[stacked]

    def index(self) -> Var:
        """The index of the step, an int32 scalar."""
        if self._index is None:
            (counter,) = self.before.call(lambda: lax.iota(np.int32, self.length))
            assert is_var(counter)
            self._index = self.x(counter)
        return self._index

    def carry(self, init: Atom) -> tuple[Var, Callable[[Atom], None], Var]:
        """A new carry: its value inside the body, a function that sets its next value, its final value."""
        aval = strong(init.aval)
        if init.aval is not aval and getattr(init.aval, "weak_type", False):
            (init,) = self.before.call(lambda v: _jax.convert_element_type(v, aval.dtype, False), init)
        entry = _Carry(init, _jax.new_var(aval), None, _jax.new_var(aval))
        self._carries.append(entry)

        def set_next(atom: Atom) -> None:
            entry.next = atom

        return entry.var, set_next, entry.final

    def first(self, atom: Atom) -> Atom | None:
        """What `atom` of the body is in the first step, made before the loop; None where that is much of its work.

        What is made step by step is made once more: elementwise work only, unless there are many steps.
        """
        env: dict[Any, Atom] = {entry.var: entry.init for entry in self._carries}
        env.update((inside, outside) for outside, inside in self._consts.items())
        needed, taken = {atom}, list[JaxprEqn]()
        for eqn in reversed(self.body.eqns):
            if any(v in needed for v in eqn.outvars):
                needed.update(x for x in eqn.invars if is_var(x))
                taken.append(eqn)
        if self.length < MANY_STEPS and not all(eqn.primitive.name in LIGHT for eqn in taken):
            return None
        at = self.length - 1 if self.reverse else 0
        for stacked, inside in self._xs.items():
            if inside in needed:
                (env[inside],) = self.before.call(lambda x: lax.index_in_dim(x, at, 0, keepdims=False), stacked)
        self.before.eqns += [copy_equation(eqn, env) for eqn in reversed(taken)]
        return substitute(atom, env)

    def last(self, atom: Atom) -> Atom:
        """What `atom` of the body is in the last step, after the loop: of a carry if it is one, else in a new one."""
        for entry in self._carries:
            if entry.next is atom and entry.final.aval == atom.aval:
                return entry.final
        aval = strong(atom.aval)
        (init,) = self.before.call(lambda: lax.full(aval.shape, 0, aval.dtype))
        _, set_next, final = self.carry(init)
        set_next(atom)
        return final

    def keep_carry(self, init: Atom, final: Var) -> tuple[Var, Callable[[Atom], None]]:
        """A carry taken over from another loop: types and the final variable stay."""
        entry = _Carry(init, _jax.new_var(final.aval), None, final)
        self._carries.append(entry)

        def set_next(atom: Atom) -> None:
            entry.next = atom

        return entry.var, set_next

    def y(self, atom: Atom, stacked: Var | None = None) -> Var:
        """The stacked variable of an output of every step."""
        out = stacked if stacked is not None else _jax.new_var(all_steps(atom.aval, self.length))
        self._ys.append((atom, out))
        return out

    def equation(self) -> JaxprEqn:
        """The scan equation."""
        carries = self._carries
        nexts = [c.next for c in carries]
        assert all(n is not None for n in nexts), "a carry was given no next value"
        body = _jax.new_jaxpr(
            self.like.params["jaxpr"].jaxpr,
            [*self._consts.values(), *(c.var for c in carries), *self._xs.values()],
            [*nexts, *(atom for atom, _ in self._ys)],
            self.body.eqns,
        )
        params = self.like.params | {"length": self.length, "reverse": self.reverse}
        return self.like.replace(
            invars=[*self._consts, *(c.init for c in carries), *self._xs],
            outvars=[*(c.final for c in carries), *(out for _, out in self._ys)],
            params=_jax.scan_params(params, ClosedJaxpr(body, ()), len(self._consts), len(carries)),
        )

    def equations(self) -> list[JaxprEqn]:
        """Everything: what prepares the loop, the loop, what finishes its results."""
        return [*self.before.eqns, self.equation(), *self.after.eqns]


def one_step(aval: Any) -> Any:
    """The type of one entry of a value stacked on a leading axis."""
    return aval.update(shape=aval.shape[1:])


def all_steps(aval: Any, length: int) -> Any:
    """The type of `length` values of type `aval`, stacked on a leading axis."""
    return strong(aval).update(shape=(length, *aval.shape))


def strong(aval: Any) -> Any:
    """The type without weakness: what a loop stacks or carries."""
    return aval.update(weak_type=False) if getattr(aval, "weak_type", False) else aval


def is_float(dtype: Any) -> bool:
    """Whether sums of this type round."""
    return jnp.issubdtype(dtype, jnp.inexact)


def holds(kind: Any, other: Any) -> bool:
    """Whether sums in the first type are as exact as in the second."""
    if kind == other:
        return True
    if not (is_float(kind) and is_float(other)):
        return False
    return jnp.finfo(kind).nmant >= jnp.finfo(other).nmant and jnp.finfo(kind).maxexp >= jnp.finfo(other).maxexp
