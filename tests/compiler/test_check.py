"""What `check_program` finds: every way to break a program, also in the part that its predecessor held."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel import _jax
from aerogel._errors import ProgramCheckError
from aerogel._jax import ClosedJaxpr, JaxprEqn, ShapedArray, new_var
from aerogel.compiler.judging import check
from aerogel.compiler.judging.check import check_program
from aerogel.compiler.kept import Kept
from aerogel.compiler.normalize import map_inner
from aerogel.compiler.program import with_equations
from compiler.programs_of import traced

ONES = np.ones(3, np.float32)


def program() -> ClosedJaxpr:
    """sin, cos, add, and a loop."""

    def f(x: Any) -> Any:
        y = jnp.cos(jnp.sin(x))
        return lax.scan(lambda c, v: (c + v, c * 2), jnp.float32(0), x + y)[1]

    return traced(f, ONES)


def changed(change: Callable[[list[JaxprEqn]], Sequence[JaxprEqn]]) -> ClosedJaxpr:
    """The program with its equations changed, those that are not are the same objects."""
    jaxpr = PROGRAM.jaxpr
    return ClosedJaxpr(with_equations(jaxpr, change(list(jaxpr.eqns))), PROGRAM.consts)


PROGRAM = program()


def without_first(eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    """The second equation reads what nobody makes."""
    return eqns[1:]


def turned(eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    """The second one stands first."""
    return [eqns[1], eqns[0], *eqns[2:]]


def doubled(eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    """One equation stands there twice."""
    return [eqns[0], *eqns]


def without_last(eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    """The result is made by nobody."""
    return eqns[:-1]


def mistyped(eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    """A new equation that says another type than it makes."""
    out = new_var(ShapedArray((4,), np.dtype("float32")))
    return [eqns[0].replace(outvars=[out]), *eqns]


def new_and_unmade(eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    """A new equation reads a variable that nobody makes."""
    x = new_var(ShapedArray((3,), np.dtype("float32")))
    return [eqns[0].replace(invars=[x], outvars=[new_var(x.aval)]), *eqns]


BROKEN = [without_first, turned, doubled, without_last, mistyped, new_and_unmade]


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_a_broken_program_is_found(change: Callable[[list[JaxprEqn]], Sequence[JaxprEqn]]) -> None:
    """However much of it is as it was before."""
    assert PROGRAM.jaxpr.eqns[-1].primitive.name == "scan"
    with pytest.raises(ProgramCheckError):
        check_program(changed(change), PROGRAM)


def inside(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """`f` as the body of loops and as a branch, by name of their parameters."""
    return {
        "scan": lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0],
        "while": lambda x: lax.while_loop(lambda x: x[0] < 3, f, x),
        "cond": lambda x: lax.cond(x[0] > 0, f, f, x),
        "scan in jit": jax.jit(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]),
    }


def without_an_equation(jaxpr: Any) -> Any:
    """A jaxpr whose innermost bodies lack their first equation."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    deeper = [map_inner(eqn, without_an_equation) for eqn in inner.eqns]
    same = all(a is b for a, b in zip(deeper, inner.eqns, strict=True))
    new = with_equations(inner, deeper[1:] if same and len(deeper) > 1 else deeper)
    return ClosedJaxpr(new, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else new


@pytest.mark.parametrize("where", inside(jnp.sin))
def test_a_broken_body_is_found(where: str) -> None:
    """JAX's own check looks at the types of loops and branches, and not at their bodies."""
    before = traced(inside(lambda x: jnp.cos(jnp.sin(x)))[where], ONES)
    after = without_an_equation(before)
    _jax.check_jaxpr(after.jaxpr)
    with pytest.raises(ProgramCheckError):
        check_program(after, before)
    check_program(ClosedJaxpr(with_equations(before.jaxpr, list(before.jaxpr.eqns)), before.consts), before)


def shown(monkeypatch: pytest.MonkeyPatch, after: ClosedJaxpr, before: ClosedJaxpr) -> list[list[str]]:
    """The equations that JAX is shown, level by level."""
    seen: list[list[str]] = []
    whole = _jax.check_jaxpr

    def watched(jaxpr: Any) -> None:
        seen.append([eqn.primitive.name for eqn in jaxpr.eqns])
        whole(jaxpr)

    with monkeypatch.context() as patch:
        patch.setattr(_jax, "check_jaxpr", watched)
        check_program(after, before)
    return seen


def test_equations_that_are_as_they_were_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX is shown what is new, and of the bodies of loops the new equations too."""
    monkeypatch.setattr(check, "_well_typed", Kept(4096))
    assert shown(monkeypatch, PROGRAM, PROGRAM) == []
    new = changed(lambda eqns: [eqns[0].replace(outvars=[new_var(eqns[0].outvars[0].aval)]), *eqns])
    assert shown(monkeypatch, new, PROGRAM) == [["sin"]]
    assert shown(monkeypatch, program(), traced(lambda x: x, ONES)) == [["cos", "add", "scan"], ["add", "mul"]]


def test_equations_that_are_alike_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other variables alone: other types, parameters or settings make another equation. Loops are all looked at."""
    monkeypatch.setattr(check, "_well_typed", Kept(4096))
    nothing = traced(lambda x: x, ONES)
    assert shown(monkeypatch, traced(lambda x: jnp.sin(x), ONES), nothing) == [["sin"]]
    assert shown(monkeypatch, traced(lambda x: jnp.sin(jnp.sin(x)), ONES), nothing) == []
    assert shown(monkeypatch, traced(jnp.sin, np.ones(4, np.float32)), traced(lambda x: x, np.ones(4, np.float32)))
    assert shown(monkeypatch, traced(lambda x: lax.reduce_precision(x, 8, 7), ONES), nothing)
    assert shown(monkeypatch, traced(lambda x: lax.reduce_precision(x, 8, 8), ONES), nothing)
    with jax.default_matmul_precision("highest"):
        assert shown(monkeypatch, traced(lambda x: jnp.sin(x), ONES), nothing) == [["sin"]]
    assert shown(monkeypatch, PROGRAM, traced(lambda x: x, ONES))[0].count("scan") == 1
    assert shown(monkeypatch, program(), traced(lambda x: x, ONES)) == [["scan"]]


def test_effects_are_checked_in_the_whole() -> None:
    """An equation with effects that was known stays an error where the program does not say that it has them."""

    def f(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x + 1

    before = traced(f, ONES)
    check_program(before, before)
    jaxpr = before.jaxpr
    silent = type(jaxpr)(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, jaxpr.eqns, set(), jaxpr.debug_info)
    with pytest.raises(ProgramCheckError):
        check_program(ClosedJaxpr(silent, before.consts), before)


def test_types_in_and_out_stay() -> None:
    """A well typed program of other arguments or results is refused."""
    with pytest.raises(ProgramCheckError):
        check_program(traced(jnp.sin, np.ones(4, np.float32)), traced(jnp.sin, ONES))
    with pytest.raises(ProgramCheckError):
        check_program(traced(lambda x: (x, x), ONES), traced(lambda x: x, ONES))
