"""Names and source lines that users see in profiles, dumps and errors are those of their code."""

import inspect
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.program import inner_jaxprs

from ._programs import STACKED, WIDTH, assert_fires, result_shapes, stacked_sum, start


def debug_text(f, *args, **options) -> str:
    """StableHLO with locations."""
    return jax.jit(f, **options).lower(*args).as_text(debug_info=True)


def inner(x):
    """Two equations under a scope."""
    with jax.named_scope("inside"):
        return jnp.sin(x) * 2


def scoped(x, tree):
    """Named scopes, an inner jit, a loop and a branch."""
    with jax.named_scope("outer"):
        y = inner(x)
        y = lax.fori_loop(0, 3, lambda _, c: jax.jit(inner)(c), y)
        y = lax.cond(y[0] > 0, inner, lambda x: x, y)
    return jax.named_call(inner, name="called")(y) + tree["shift"]


def test_locations_where_nothing_fires_are_jax_s_own():
    """With debug info, too, the StableHLO of a program left alone is plain JAX's: scopes, files, lines, names."""
    args = jnp.ones(4), {"shift": jnp.ones(4)}
    plain, optimised = debug_text(scoped, *args), debug_text(ag.optimize(scoped), *args)
    assert "outer/inside" in plain
    assert "tree['shift']" in plain
    assert _places(optimised) == _places(plain)


def _places(text: str) -> list[str]:
    """Scopes and argument names, and the lines of this file, in order."""
    quoted = re.findall(r'loc\("([^"]*)"', text)
    return sorted({name for name in quoted if not name.startswith("/")} | set(_lines_of_this_file(text)))


def _lines_of_this_file(text: str) -> list[str]:
    return re.findall(re.escape(__file__) + r'":\d+', text)


def loop(x):
    """A loop that is rewritten, under names."""
    with jax.named_scope("simulate"):

        def body(c, _):
            with jax.named_scope("step"):
                c = jnp.sin(c)
            return c, jnp.cosh(c)

        ys = lax.scan(body, x, None, length=STACKED[0])[1]
    with jax.named_scope("measure"):
        return ys.sum()


def test_scopes_and_lines_survive_a_rewrite():
    """In the rewritten loop the user's equations still carry scope and line."""
    assert_fires(loop, start())
    text = debug_text(ag.optimize(loop), start())
    first = inspect.getsourcelines(loop)[1]
    source = inspect.getsource(loop).splitlines()
    for word in ("jnp.sin(c)", "jnp.cosh(c)"):
        line = first + next(k for k, row in enumerate(source) if word in row)
        assert f'{__file__}":{line}' in text
    assert "simulate" in text
    assert "step" in text


def test_equations_of_a_rewritten_program_have_a_line_of_the_user():
    """Every equation that a rewrite made or kept points into the user's file, none into aerogel's."""
    text = debug_text(ag.optimize(loop), start())
    assert __file__ in text
    assert "aerogel/compiler" not in text
    assert "aerogel/transform" not in text
    assert "aerogel/_jax" not in text


@pytest.mark.parametrize("f", [scoped, loop], ids=["left alone", "rewritten"])
def test_module_and_argument_names(f):
    """The module is `jit_<name of f>`, and arguments have their names."""
    args = (start(), {"shift": start()})[: 2 if f is scoped else 1]
    text = debug_text(ag.optimize(f), *args)
    assert f"module @jit_{f.__name__}" in text
    assert 'loc("x")' in text
    assert jax.jit(ag.optimize(f)).lower(*args).compile().runtime_executable().hlo_modules()[0].name == (
        f"jit_{f.__name__}"
    )


def test_names_of_arguments_and_results_in_programs():
    """`make_jaxpr` shows the names that it shows for `f` itself."""

    def names(g):
        info = jax.make_jaxpr(jax.jit(g))(jnp.ones(3), {"shift": jnp.ones(3)}).eqns[0].params["jaxpr"].jaxpr.debug_info
        return info.arg_names, info.result_paths, info.func_name

    assert names(ag.optimize(scoped)) == names(scoped)


def test_scopes_around_the_call():
    """A scope that is open around the call encloses the scopes of the program."""

    def around(f):
        def g(x):
            with jax.named_scope("around"):
                return f(x)

        return g

    assert "around/inside" in debug_text(around(inner), jnp.ones(3))
    assert "around/inside" in debug_text(around(ag.optimize(inner)), jnp.ones(3))
    assert "around/simulate" in debug_text(around(ag.optimize(loop)), start())


def test_transformations_are_named_as_in_jax():
    """Names that differentiation and batching leave in scopes are there."""
    f = jax.grad(lambda x: inner(x).sum())
    plain, optimised = (debug_text(jax.vmap(g), jnp.ones((2, 3))) for g in (f, ag.optimize(f)))
    assert "transpose" in plain
    assert _places(optimised) == _places(plain)


def test_the_report_names_the_users_lines():
    """A decision that fired says where: this package's file and the line of the user's loop."""
    reports = []
    jax.make_jaxpr(ag.optimize(loop, on_report=reports.append))(start())
    (report,) = reports
    assert report.name == "loop"
    first, lines = inspect.getsourcelines(loop)[1], len(inspect.getsource(loop).splitlines())
    assert report.fired
    for decision in report.fired:
        numbers = [int(n) for n in re.findall(r":(\d+)", decision.where)]
        assert "test_names_and_lines.py" in decision.where
        assert any(first <= n < first + lines for n in numbers)


def test_the_size_of_what_was_saved_is_in_the_report():
    """The predicted saving counts the stacked array: `LENGTH * WIDTH` floats at least."""
    reports = []
    g = ag.optimize(stacked_sum, on_report=reports.append)
    assert result_shapes(jax.make_jaxpr(g)(start()))[STACKED] == 0
    assert reports[0].before.peak_bytes - reports[0].after.peak_bytes >= 4 * STACKED[0] * WIDTH // 2
    assert sum(d.bytes_saved for d in reports[0].fired) >= 4 * STACKED[0] * WIDTH


def test_lines_are_the_users_and_not_a_librarys() -> None:
    """What an installed package computes is reported at the line that called it."""

    def loss(w, xs, labels):
        hidden = jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, xs[0], xs)[1]
        return optax.tree.norm(hidden - labels)

    xs = jnp.ones((64, 8, 1024))
    decisions = ag.explain(loss)(jnp.eye(1024), xs, xs).decisions
    assert decisions
    assert {d.where.split(":")[0] for d in decisions} == {"test_names_and_lines.py"}


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "jit"])
def test_a_gradient_from_outside_has_the_scopes_of_jax(compiled):
    """Differentiated after us, on the function's own way back: every operation is named as JAX names it."""

    def scopes(wrap):
        f = jax.value_and_grad(jax.named_scope("outer")(wrap(lambda x: inner(x).sum())))
        return [found for eqn in jax.make_jaxpr(f)(jnp.ones(3)).jaxpr.eqns for found in _scopes(eqn)]

    jit = jax.jit if compiled else lambda f: f
    optimised = scopes(lambda f: jit(ag.optimize(f)))
    assert optimised == scopes(jit)
    assert any("inside" in name for name in optimised)


def _scopes(eqn) -> list[str]:
    nested = [name for sub in inner_jaxprs(eqn) for inside in sub.eqns for name in _scopes(inside)]
    return [f"{eqn.primitive.name}: {eqn.source_info.name_stack}", *nested]
