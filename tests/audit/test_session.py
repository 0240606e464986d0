"""What replaces `jax.jit`, and what it returns: JAX's behaviour, and a count."""

import copy
import functools
import gc
import inspect
import pickle
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax
from aerogel.audit._counted import CountedJit
from aerogel.audit._session import Session

MakeSession = Callable[..., Session]


def rows(session: Session) -> dict[str, Any]:
    """The report's rows by name."""
    return {row.name: row for row in session.report().functions}


def scan_sum(x: jax.Array) -> jax.Array:
    """The sum over a loop's stacked results, which the optimiser always rewrites."""
    return jax.lax.scan(lambda c, _: (c * 0.5, c), x, None, length=50)[1].sum()


def test_every_door_and_form(session: MakeSession) -> None:
    """All spellings of `jit` give an optimised function; JAX's own callers get the original."""
    original = jax.jit
    session()
    assert jax.jit is _jax.jit_doors[0].jit is not original
    door = _jax.jit_doors[1]

    class Holder:
        @functools.partial(jax.jit, static_argnums=0)
        def method(self, x: Any) -> Any:
            return x + self.one()

        def one(self) -> int:
            return 1

    @jax.jit(static_argnames="n")
    def power(x: Any, n: int) -> Any:
        return x**n

    forms = [
        jax.jit(abs),
        door.pjit(abs),
        functools.partial(jax.jit, inline=True)(abs),
        jax.jit(functools.partial(abs)),
    ]
    assert all(type(form) is CountedJit and form(-2.0) == 2 for form in forms)
    assert Holder().method(1) == 2
    assert power(2, n=3) == 8
    assert type(power) is CountedJit
    assert str(inspect.signature(jax.jit)) == str(inspect.signature(original))
    assert pickle.loads(pickle.dumps(jax.jit)) is jax.jit
    caller = types.FunctionType((lambda f: jax.jit(f)).__code__, {"jax": jax, "__name__": "jax._src.inside"})
    assert type(caller(abs)) is not CountedJit


def test_uninstalling_gives_jax_back(session: MakeSession) -> None:
    """A run leaves no trace in JAX."""
    before = (jax.jit, _jax.jit_doors[0].jit, _jax.jit_doors[1].pjit, _jax.jit_doors[1]._infer_params)
    one = session(compare=True)
    assert jax.jit is not before[0]
    one.uninstall()
    assert (jax.jit, _jax.jit_doors[0].jit, _jax.jit_doors[1].pjit, _jax.jit_doors[1]._infer_params) == before


def documented(x: jax.Array, scale: float = 2.0) -> jax.Array:
    """The docstring."""
    return x * scale


def test_it_behaves_as_jits_result(session: MakeSession) -> None:
    """Attributes, stages, hashing, weak references, copies and transformations are those of JAX's own object."""
    plain = jax.jit(documented)
    session()
    jitted = jax.jit(documented)
    x = jnp.arange(3.0)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__wrapped__"):
        assert getattr(jitted, name) == getattr(plain, name), name
    assert inspect.signature(jitted) == inspect.signature(plain)
    assert set(dir(plain)) <= set(dir(jitted))
    assert isinstance(jitted, jax.stages.Wrapped)
    assert jitted.lower(x).compile()(x).tolist() == [0, 2, 4]
    assert jitted.trace(x).jaxpr.out_avals == plain.trace(x).jaxpr.out_avals
    assert jitted.eval_shape(x) == plain.eval_shape(x)
    assert jitted(x, scale=3.0).tolist() == [0, 3, 6]
    assert jitted._cache_size() == 1
    jitted.clear_cache()
    assert jitted._cache_size() == 0
    assert weakref.ref(jitted)() is jitted
    assert {jitted: 1}[jitted] == 1
    assert copy.deepcopy(jitted) is jitted
    assert repr(jitted).startswith("<PjitFunction of <function documented")
    assert jax.grad(lambda x: jitted(x).sum())(x).tolist() == [2, 2, 2]
    assert jax.vmap(jitted)(x).tolist() == [0, 2, 4]
    assert jax.jit(jitted)(x).tolist() == [0, 2, 4]
    assert jax.export.export(jitted)(x).call(x).tolist() == [0, 2, 4]
    again = pickle.loads(pickle.dumps(jitted))
    assert type(again) is CountedJit
    assert again(x).tolist() == [0, 2, 4]


def test_calls_are_counted_apart(session: MakeSession) -> None:
    """Calls that run, calls that become part of another function, and traces; also of objects that are gone."""
    one = session()
    inner = jax.jit(documented)
    outer = jax.jit(lambda x: inner(x) + inner(x + 1))
    x = jnp.ones(3)
    for _ in range(4):
        outer(x)
    inner(x)
    inner(jnp.ones(5))
    jax.grad(lambda x: inner(x).sum())(x)
    found = rows(one)
    assert (found["<lambda>"].calls, found["<lambda>"].calls_inside, len(found["<lambda>"].traces)) == (4, 0, 1)
    assert (found["documented"].calls, found["documented"].calls_inside) == (3, 2)
    inner = outer = None
    gc.collect()
    assert (rows(one)["documented"].calls, rows(one)["<lambda>"].calls) == (3, 4)


def test_functions_are_not_kept_alive(session: MakeSession) -> None:
    """A loop that jits a new closure each time is one row, and its closures and their arrays are freed."""
    one = session()
    freed = []
    for index in range(5):
        weight = jnp.full(3, float(index))
        freed.append(weakref.ref(weight))
        jax.jit(lambda x, w=weight: x + w)(1.0)
    del weight
    gc.collect()
    assert sum(ref() is not None for ref in freed) == 0
    (row,) = one.report().functions
    assert (row.calls, len(row.traces)) == (5, 5)


def test_two_jits_of_one_function_share_a_trace(session: MakeSession) -> None:
    """`jax.jit(f)(x)` in a loop is traced once, as in JAX."""
    one = session()
    for _ in range(3):
        jax.jit(documented)(jnp.ones(3))
    assert (rows(one)["documented"].calls, len(rows(one)["documented"].traces)) == (3, 1)


def test_transformed_functions_have_rows_of_their_own(session: MakeSession) -> None:
    """`jax.jit(jax.grad(f))` is not `jax.jit(f)`."""
    one = session()
    jax.jit(scan_sum)(jnp.ones(3))
    jax.jit(jax.value_and_grad(scan_sum))(jnp.ones(3))
    jax.jit(jax.vmap(jax.grad(scan_sum)))(jnp.ones(3))
    assert list(rows(one)) == ["scan_sum", "value_and_grad(scan_sum)", "vmap(grad(scan_sum))"]


def test_disable_jit_runs_python(session: MakeSession) -> None:
    """Under `jax.disable_jit()` a function sees values, so that it can be debugged."""
    session(compare=True)
    seen = []
    with jax.disable_jit():
        jax.jit(lambda x: seen.append(isinstance(x, jax.core.Tracer)))(jnp.ones(()))
    assert seen == [False]


def test_a_call_stays_in_c(session: MakeSession) -> None:
    """A compiled function that is called again enters no Python frame, as JAX's own does not."""
    session()
    jitted, x = jax.jit(documented), jnp.ones(())
    jitted(x)
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        jitted(x)
    finally:
        sys.setprofile(None)
    assert entered == []


@pytest.mark.parametrize("numerics", ["strict", "fast"])
def test_numerics_reach_the_optimiser(session: MakeSession, numerics: str) -> None:
    """`--numerics strict` allows no sums in another order."""
    one = session(numerics=numerics)
    jax.jit(scan_sum)(jnp.ones(1000))
    fired = [d.exactness for report in rows(one)["scan_sum"].traces for d in report.fired]
    assert ("reassociates" in fired) == (numerics == "fast")
    assert np.isfinite(rows(one)["scan_sum"].calls)


def test_what_aerogel_compiles_itself_is_in_the_table(session: MakeSession) -> None:
    """`ag.jit` of a function, a module and a method stands there once each, as the user's, optimised once."""
    made = session()

    class Model(ag.Module):
        weight: jax.Array

        def __call__(self, x: Any, how: Any) -> Any:
            return how(self.weight * x)

        @ag.jit
        def method(self) -> Any:
            return scan_sum(self.weight)

    @ag.jit(donate="state")
    def step(model: Model, rate: Any) -> Any:
        return ag.at(model).weight.apply(lambda w: w + scan_sum(w) * rate), {"name": "a"}

    model = Model(jnp.ones(3))
    compiled = ag.jit(Model(jnp.ones(3)))
    for _ in range(3):
        compiled(2.0, jnp.tanh)
        Model(jnp.ones(3)).method()
        model, _ = step(model, 0.5)
    jax.jit(lambda x: ag.jit(scan_sum)(x))(jnp.ones(3))
    found = rows(made)
    assert {name: (row.calls, row.calls_inside, len(row.traces)) for name, row in found.items()} == {
        "Model": (3, 0, 1),
        "method": (3, 0, 1),
        "step": (3, 0, 1),
        "scan_sum": (0, 1, 0),
        "<lambda>": (1, 0, 1),
    }
    assert all("test_session.py:" in row.where for row in found.values())
    rewritten = {name for name, row in found.items() if any(trace.fired for trace in row.traces)}
    assert rewritten == {"method", "step", "<lambda>"}


def test_aerogel_compiles_as_before_when_a_session_ends(session: MakeSession) -> None:
    """A function made later is in no table, and one made before goes on."""
    made = session()
    before = ag.jit(scan_sum)
    made.uninstall()
    after = ag.jit(lambda x: scan_sum(x))
    assert before(jnp.ones(3)) == after(jnp.ones(3))
    assert set(rows(made)) == {"scan_sum"}
