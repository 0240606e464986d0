"""A pass that goes wrong leaves the user's program and result as they were: one warning, one red decision."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax
from aerogel._errors import PassFailedWarning
from aerogel.compiler.exactness import Exactness

from ._programs import assert_equal_trees, left_alone, lowered_text, stacked_sum, start

PROGRAMS = {"left alone": left_alone, "loop": stacked_sum}


@dataclasses.dataclass(frozen=True)
class Faulty:
    """A pass that does `act(program)` to every program."""

    name: str
    act: Callable[[Any], Any]
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program, context):
        return self.act(program)


def same(program):
    """Nothing."""
    return program, []


def raises(program):
    """An error."""
    raise RuntimeError("a fault on purpose")


def raises_assertion(program):
    """An error without a text."""
    raise AssertionError


def raises_recursion(program):
    """Too deep a recursion."""
    return raises_recursion(program)


def runs_out_of_memory(program):
    """No memory for what the pass builds."""
    raise MemoryError


def returns_nothing(program):
    """No program."""
    return None


def returns_no_decisions(program):
    """A program instead of a pair."""
    return program


def drops_a_result(program):
    """One result too few."""
    jaxpr = program.jaxpr
    return _rebuilt(program, jaxpr.eqns, jaxpr.outvars[:-1]), []


def drops_equations(program):
    """Results that no equation defines."""
    return _rebuilt(program, [], program.jaxpr.outvars), []


def reverses_equations(program):
    """Values that are read before they are computed."""
    return _rebuilt(program, program.jaxpr.eqns[::-1], program.jaxpr.outvars), []


def changes_a_type(program):
    """The result in half precision."""
    return _mapped(program, lambda x: x.astype(jnp.bfloat16)), []


def changes_a_weak_type(program):
    """A strongly typed result where a weak one was promised."""
    return _mapped(program, lambda x: jax.lax.convert_element_type(x, x.dtype)), []


def changes_a_shape(program):
    """One axis too many."""
    return _mapped(program, lambda x: x[None]), []


def adds_an_argument(program):
    """One argument too many."""
    more = jax.make_jaxpr(lambda *xs: jax.core.eval_jaxpr(program.jaxpr, program.consts, *xs[1:]))
    return more(program.jaxpr.invars[0].aval, *(v.aval for v in program.jaxpr.invars)), []


def lies_about_an_equation(program):
    """An equation whose stated result type is not what its primitive gives."""
    first, *rest = program.jaxpr.eqns
    (old,) = first.outvars if len(first.outvars) == 1 else first.outvars[-1:]
    new = _jax.new_var(old.aval.update(shape=(3,)))
    return _rebuilt(program, [first.replace(outvars=[*first.outvars[:-1], new]), *rest], program.jaxpr.outvars), []


def _mapped(program, change):
    """The program whose results went through `change`."""

    def f(*xs):
        return [change(x) for x in jax.core.eval_jaxpr(program.jaxpr, program.consts, *xs)]

    return jax.make_jaxpr(f)(*(v.aval for v in program.jaxpr.invars))


def _rebuilt(program, eqns, outvars):
    return _jax.ClosedJaxpr(_open(program.jaxpr, eqns, outvars), program.consts)


def _open(jaxpr, eqns, outvars):
    return _jax.new_jaxpr(jaxpr, jaxpr.invars, outvars, list(eqns), jaxpr.constvars)


def _at_depth(program, depth, change):
    """The program with `change` made to the body of the first loop, `depth` loops deep."""
    if depth == 0:
        return _jax.ClosedJaxpr(change(program.jaxpr), program.consts)

    def inner(eqn):
        if eqn.primitive.name != "scan":
            return eqn
        return eqn.replace(params=eqn.params | {"jaxpr": _at_depth(eqn.params["jaxpr"], depth - 1, change)})

    return _rebuilt(program, [inner(eqn) for eqn in program.jaxpr.eqns], program.jaxpr.outvars)


FAULTS = [
    raises,
    raises_assertion,
    raises_recursion,
    runs_out_of_memory,
    returns_nothing,
    returns_no_decisions,
    drops_a_result,
    drops_equations,
    reverses_equations,
    changes_a_type,
    changes_a_shape,
    adds_an_argument,
    lies_about_an_equation,
]


@pytest.fixture(autouse=True)
def _as_users_run(monkeypatch):
    """The tests' own setting turns faults into errors; users do not have it."""
    monkeypatch.delenv("AEROGEL_STRICT", raising=False)


def run_with(act, f, *args, others=()) -> tuple[Any, list[PassFailedWarning], Any, str]:
    """Result, warnings, report and StableHLO of `f` under a faulty pass (and others around it)."""
    reports = []
    passes = (*others[:1], Faulty(act.__name__, act), *others[1:])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jitted = jax.jit(ag.optimize(f, passes=passes, on_report=reports.append))
        out = jitted(*args)
        out = jitted(*args)  # a warm call warns no second time
    (report,) = reports
    ours = [w.message for w in caught if isinstance(w.message, PassFailedWarning)]
    return out, ours, report, lowered_text(f, *args)


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("act", FAULTS, ids=lambda f: f.__name__)
def test_a_faulty_pass_changes_nothing(act, kind):
    """The result is plain JAX's, one warning names the pass and the function, the report has one red decision."""
    f = PROGRAMS[kind]
    out, ours, report, _ = run_with(act, f, start())
    assert_equal_trees(out, jax.jit(f)(start()))
    (warning,) = ours
    assert warning.pass_name == act.__name__
    assert warning.function == f.__name__
    (failed,) = report.failed
    assert failed.failed
    assert not failed.fired
    assert failed.rule == act.__name__
    assert failed.reason
    assert report.fired == ()


def test_a_changed_weak_type_is_a_fault_too():
    """`2.0 -> strong` where `f` gives a weak result would change the types that follow."""
    out, ours, _, _ = run_with(changes_a_weak_type, jnp.sin, 2.0)
    assert jax.typeof(out).weak_type
    assert len(ours) == 1


@pytest.mark.parametrize("act", [raises, drops_equations, changes_a_type], ids=lambda f: f.__name__)
def test_the_program_is_left_as_it_was(act):
    """StableHLO under a faulty pass is plain JAX's, to the letter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PassFailedWarning)
        text = lowered_text(ag.optimize(left_alone, passes=(Faulty("faulty", act),)), start())
    assert text == lowered_text(left_alone, start())


def test_the_other_passes_still_work():
    """Passes before and after the faulty one do their work on the program as it was."""
    seen = []

    def look(tag):
        def act(program):
            seen.append((tag, len(program.jaxpr.eqns)))
            return program, []

        return Faulty(tag, act)

    _, ours, report, _ = run_with(drops_equations, left_alone, start(), others=(look("before"), look("after")))
    assert [tag for tag, _ in seen] == ["before", "after"]
    assert seen[0][1] == seen[1][1] > 0
    assert len(ours) == len(report.failed) == 1


def test_a_pass_that_never_ends(monkeypatch):
    """A pass in an endless loop is stopped when its time is over, and counts as faulty."""
    monkeypatch.setenv("AEROGEL_PASS_SECONDS", "0.3")

    def loops(program):
        while True:
            time.sleep(0.001)

    began = time.perf_counter()
    out, ours, report, _ = run_with(loops, stacked_sum, start())
    assert time.perf_counter() - began < 10
    np.testing.assert_array_equal(out, jax.jit(stacked_sum)(start()))
    assert len(ours) == len(report.failed) == 1


def test_passes_share_one_budget(monkeypatch):
    """A pass that catches every error is stopped too; those after it do not run, and none of them is blamed."""
    monkeypatch.setenv("AEROGEL_PASS_SECONDS", "0.3")

    def loops(program):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.001)

    out, ours, report, _ = run_with(
        loops, left_alone, start(), others=(Faulty("before", same), Faulty("after", raises))
    )
    assert_equal_trees(out, jax.jit(left_alone)(start()))
    assert [warning.pass_name for warning in ours] == [one.rule for one in report.failed] == ["loops"]
    assert [(one.rule, one.reason) for one in report.refused] == [("after", "no time was left for it")]


def test_a_fault_in_the_body_of_a_loop_of_a_loop():
    """What JAX's check of a loop does not look at: an unbound variable, a result that is none, two scans deep."""

    def f(x):
        return jax.lax.scan(lambda c, _: (jax.lax.scan(lambda d, _: (jnp.sin(d), d), c, None, 3)[0], c), x, None, 4)

    def without_equations(program):
        return _at_depth(program, 2, lambda body: _open(body, [], body.outvars)), []

    def with_a_foreign_result(program):
        return _at_depth(
            program, 2, lambda body: _open(body, body.eqns, [program.jaxpr.invars[0], *body.outvars[1:]])
        ), []

    for act in (without_equations, with_a_foreign_result):
        out, ours, report, _ = run_with(act, f, start())
        assert_equal_trees(out, jax.jit(f)(start()))
        assert len(ours) == len(report.failed) == 1


def test_effects_that_are_not_the_equations_are_a_fault():
    """An equation that says it has no effect, where its body prints, would be dropped or moved by JAX."""

    def f(x):
        return jax.lax.scan(lambda c, _: (jax.debug.print("{}", c, ordered=True), (c + 1, None))[1], x, None, 2)[0]

    def quiet(program):
        eqns = [eqn.replace(effects=set()) for eqn in program.jaxpr.eqns]
        return _rebuilt(program, eqns, program.jaxpr.outvars), []

    out, ours, report, _ = run_with(quiet, f, start())
    assert_equal_trees(out, jax.jit(f)(start()))
    assert len(ours) == len(report.failed) == 1


def test_passes_that_undo_each_other_end():
    """Two passes that claim a change every time are run once each: rewriting ends by construction."""
    runs = []

    def changes(program):
        runs.append(1)
        return _rebuilt(program, program.jaxpr.eqns, program.jaxpr.outvars), []

    out, ours, _, _ = run_with(changes, left_alone, start(), others=(Faulty("other", changes),))
    assert len(runs) == 2
    assert ours == []
    assert_equal_trees(out, jax.jit(left_alone)(start()))


def test_strict_runs_raise_the_fault_itself(monkeypatch):
    """Under `AEROGEL_STRICT=1`, which our own tests set, a fault is an error with its whole traceback."""
    monkeypatch.setenv("AEROGEL_STRICT", "1")
    with pytest.raises(RuntimeError, match="a fault on purpose"):
        jax.jit(ag.optimize(left_alone, passes=(Faulty("raises", raises),)))(start())


def test_interrupts_in_a_pass_are_not_faults():
    """Ctrl-C while a pass runs stops the program."""

    def interrupted(program):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jax.jit(ag.optimize(left_alone, passes=(Faulty("interrupted", interrupted),)))(start())


def test_warnings_that_are_errors_stay_inside_python_s_rules():
    """With `-W error` the warning is raised, as any warning would be; the next call works."""
    g = ag.optimize(left_alone, passes=(Faulty("raises", raises),))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PassFailedWarning)
        with pytest.raises(PassFailedWarning, match="'raises' failed on `left_alone`"):
            jax.jit(g)(start())
    with pytest.warns(PassFailedWarning):
        assert_equal_trees(jax.jit(g)(start()), jax.jit(left_alone)(start()))


def test_the_warning_points_at_the_caller():
    """The warning's file is the user's (here: this one), so that filters by module work."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ag.optimize(left_alone, passes=(Faulty("raises", raises),))(start())
    (warning,) = caught
    assert warning.filename == __file__


def test_a_fault_under_grad_and_vmap():
    """A fault is as harmless under other transformations."""

    def f(x):
        return stacked_sum(x)

    g = ag.optimize(f, passes=(Faulty("raises", raises),))
    for transform in (jax.grad, jax.value_and_grad, lambda f: lambda x: jax.vmap(f)(x[None])):
        with pytest.warns(PassFailedWarning):
            got = jax.jit(transform(g))(start())
        assert_equal_trees(got, jax.jit(transform(f))(start()))


def test_no_passes_change_nothing():
    """`passes=()` gives plain JAX's program, for any program."""
    for f in PROGRAMS.values():
        assert lowered_text(ag.optimize(f, passes=()), start()) == lowered_text(f, start())


@pytest.mark.parametrize("numerics", ["fst", "", None, 3, "FAST"])
def test_unknown_numerics_are_refused_at_once(numerics):
    """A word that `numerics` does not know is a `UsageError` when `optimize` is called, not when `f` is."""
    with pytest.raises(ValueError, match="numerics") as error:
        ag.optimize(left_alone, numerics=numerics)
    assert "fast" in str(error.value)
    assert "strict" in str(error.value)
