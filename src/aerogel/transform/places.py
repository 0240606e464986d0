"""Where variables live while a call of `stateful` is traced: as places, that the program reads and writes.

Before the program is used its places are taken out of it: they become arguments, results and carries of its loops.
JAX knows how to do that for mutable arrays, with some gaps, for which `check_places` looks: a program that passes it
means what it says.
"""

import operator
from collections.abc import Sequence
from typing import Any

import jax

from aerogel import _jax
from aerogel.compiler.normalize import map_inner, open_jaxpr
from aerogel.compiler.program import copy_equation, rename, substitute, with_equations
from aerogel.module._errors import StateError

_jax.exclude_from_tracebacks(__file__)

_WHY = {
    "vmap": (
        "under `vmap`, what a variable is set to must be one value for all elements.",
        "take it over the mapped axis, jax.lax.pmean(value, axis_name); or map over ag.stateful(f)",
    ),
    "grad": (
        "a value with a gradient cannot leave the function that `jax.grad` differentiates.",
        "set it to jax.lax.stop_gradient(value); or jax.grad(ag.stateful(f), has_aux=True)",
    ),
    "branch": (
        "a branch, or a loop whose length differs, uses a variable under `vmap`.",
        "read it before: value = variable.get(); update it after the branch or loop, or map over ag.stateful(f)",
    ),
    "condition": (
        "the condition of a loop reads a variable that its body updates.",
        "keep the value that the condition needs in the loop's carry",
    ),
    "rule": (
        "a function with a derivative of its own, or one that a solver calls, uses a variable.",
        "read it before, value = variable.get(); update it after, with what the function returns",
    ),
    "sharding": (
        "a `jit` with shardings of its own uses a variable from outside of it.",
        "jax.jit(ag.stateful(f), in_shardings=...), or jax.lax.with_sharding_constraint inside",
    ),
    "shard_map": (
        "a function under `shard_map` uses a variable from outside of it.",
        "map the stateful function: jax.shard_map(ag.stateful(f), ...)(model, ...)",
    ),
}


def refusal(name: str, reason: str) -> StateError:
    """The error for the variable at the path `name`."""
    what, to_fix = _WHY[reason]
    return StateError(what=what, place=name, to_fix=to_fix)


def _refusal_here(name: str, reason: str) -> StateError:
    """The same, with the line that the user's program is at."""
    return refusal(name + _at(_jax.lines_now()), reason)


def _at(line: tuple[str, int, str] | None) -> str:
    return f", at {line[0].rsplit('/', 1)[-1]}:{line[1]}" if line else ""


# What JAX takes places out of correctly, as far as `check_places` lets it. Elsewhere it would drop a derivative rule,
# or it has no way to.
_FOLLOWED = {"read_place", "write_place", "scan", "while", "cond", "jit", "remat2", "closed_call"}

_read, _write = _jax.place_primitives(_refusal_here)


class Places:
    """The store of a call that is traced."""

    def __init__(self, places: Any, names: tuple[str, ...], initial: tuple[Any, ...]) -> None:
        self.places = tuple(places)
        self.names = names
        self.initial = initial
        self._devices = _axes_by_hand()

    def read(self, index: int) -> Any:
        """The value of one variable now."""
        return _read.bind(self._place(index), name=self.names[index])

    def write(self, index: int, value: Any) -> None:
        """Gives one variable a value of its type."""
        _write.bind(self._place(index), value, name=self.names[index])

    def _place(self, index: int) -> Any:
        if _axes_by_hand() != self._devices:
            raise _refusal_here(self.names[index], "shard_map")
        return self.places[index]


def _axes_by_hand() -> frozenset[Any]:
    """The axes of the mesh that a surrounding `shard_map` took over."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def check_places(program: Any) -> None:
    """Refuses the programs whose places JAX would take out wrongly.

    Raises:
        StateError: a function with a derivative of its own uses a variable, or one that a solver calls; or a loop's
            condition does, and its body updates it; or a loop does whose length differs between elements of a `vmap`;
            or a `jit` with shardings does.
    """
    for equation in program.eqns:
        if not any(_jax.is_place(v.aval) for v in equation.invars):
            continue
        if equation.primitive.name not in _FOLLOWED and _name_in(equation):
            raise refusal(_named(equation), "rule")
        if equation.primitive.name == "while":
            _check_loop(equation)
        shardings = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
        if not all(map(_jax.is_unspecified, shardings)):
            raise refusal(_named(equation), "sharding")
        for inner in _jax.jaxprs_in_params(equation.params):
            check_places(inner)


def _check_loop(equation: Any) -> None:
    condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    if condition.out_avals[0].shape != ():
        raise refusal(_named(equation), "branch")
    split = equation.params["cond_nconsts"]
    written = {v for v, yes in zip(equation.invars[split:], _jax.written_places(body), strict=True) if yes}
    if any(v in written for v in equation.invars[:split] if _jax.is_place(v.aval)):
        raise refusal(_named(equation), "condition")


def refused_branches(branches: Sequence[Any]) -> StateError:
    """The error for branches under `vmap` that use variables: it names the first, and the line that uses it."""
    first = _first_use([each for branch in branches for each in branch.eqns])
    return refusal("a variable of the model" if first is None else _named(first), "branch")


def _named(equation: Any) -> str:
    """The path of a variable that an equation uses, and the user's line."""
    return (_name_in(equation) or "a reference") + _at(_jax.source_lines(equation))


def _name_in(equation: Any) -> str | None:
    """The path of the first variable that an equation reads or writes; None if its places are somebody else's."""
    first = _first_use([equation])
    return None if first is None else first.params["name"]


def _first_use(equations: Sequence[Any]) -> Any:
    """The first of these equations, or of those inside of them, that reads or writes a variable; None for none."""
    pending = list(equations)
    while pending:
        first = pending.pop(0)
        if first.primitive in (_read, _write):
            return first
        pending += [each for inner in _jax.jaxprs_in_params(first.params) for each in inner.eqns]
    return None


def taken_out(program: Any) -> Any:
    """The program without its places: it takes their values and returns, after its results, those that they have then.

    Functions with derivative rules keep them. In the loops JAX leaves calls behind, whose types its own checks do not
    know under `vmap` (`closed_call`, 0.10.2): they are inlined.
    """
    kept = _jax.ClosedJaxpr(_with_rules_kept(program.jaxpr), program.consts)
    whole = _jax.without_places(kept)
    return _jax.ClosedJaxpr(_without_calls(whole.jaxpr), whole.consts)


def _with_rules_kept(jaxpr: Any) -> Any:
    """The program in which JAX finds no derivative rule to drop, where it looks for places."""
    program = open_jaxpr(jaxpr)
    has_place = [any(_jax.is_place(v.aval) for v in equation.invars) for equation in program.eqns]
    equations = [
        map_inner(equation, _with_rules_kept) if has else _jax.kept_whole(equation)
        for equation, has in zip(program.eqns, has_place, strict=True)
    ]
    if all(map(operator.is_, equations, program.eqns)):
        return jaxpr
    new = with_equations(program, equations)
    return _jax.ClosedJaxpr(new, jaxpr.consts) if isinstance(jaxpr, _jax.ClosedJaxpr) else new


def _without_calls(jaxpr: Any) -> Any:
    closed = isinstance(jaxpr, _jax.ClosedJaxpr)
    program = open_jaxpr(jaxpr)
    equations: list[Any] = []
    names: dict[Any, Any] = {}
    for equation in program.eqns:
        new = _jax.as_it_was(rename(map_inner(equation, _without_calls), names))
        if new.primitive.name != "closed_call":
            equations.append(new)
            continue
        body = new.params["call_jaxpr"]
        assert not body.consts, "JAX made it of a program without constants"
        inner = dict(zip(body.jaxpr.invars, new.invars, strict=True))
        equations += [copy_equation(each, inner) for each in body.jaxpr.eqns]
        outs = [substitute(x, inner) for x in body.jaxpr.outvars]
        names.update(zip(new.outvars, outs, strict=True))
    if len(equations) == len(program.eqns) and all(map(operator.is_, equations, program.eqns)):
        return jaxpr
    new = with_equations(program, equations, [substitute(x, names) for x in program.outvars])
    return _jax.ClosedJaxpr(new, jaxpr.consts) if closed else new
