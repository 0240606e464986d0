"""Errors are the user's or JAX's own: same class, same text, and no line of ours in the traceback."""

import subprocess
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag

from ._programs import beside_rewrite, stacked_sum, start


class Odd:
    """Nothing that JAX knows."""


def returns_text(x):
    """A result that is no array, below a name."""
    return {"good": x, "bad": "text"}


def returns_object(x):
    """A result that JAX does not know."""
    return x, Odd()


def branches(x, y):
    """Python's `if` on a traced value."""
    return x if x > 0 else y


def counts(x, y):
    """Python's `range` of a traced value."""
    return sum(1 for _ in range(x))


def converts(x, y):
    """NumPy on a traced value."""
    return np.asarray(x) + y


def indexes(x, y):
    """A list indexed by a traced value."""
    return [1, 2, 3][x]


def adds_shapes(x, y):
    """Shapes that do not broadcast."""
    return jnp.ones(3) + jnp.ones(4) + x


def carries_another_type(x, y):
    """A loop whose carry changes its type."""
    return lax.scan(lambda c, _: (c.astype(jnp.int32), None), jnp.ones(3), None, length=2)


def divides(x, y):
    """An error of plain Python."""
    return 1 // 0 + x


def grows(x, y):
    """Branches of different shapes."""
    return lax.cond(x > 0, lambda: jnp.ones(2), lambda: jnp.ones(3))


def masks(x, y):
    """A result whose size depends on values."""
    return jnp.arange(3.0)[jnp.arange(3.0) > x]


FAILING = [
    returns_text,
    returns_object,
    branches,
    counts,
    converts,
    indexes,
    adds_shapes,
    carries_another_type,
    divides,
    grows,
    masks,
]


def failure(f, *args, **kwargs) -> BaseException:
    """What `jit(f)(*args)` raises."""
    with pytest.raises(Exception) as error:  # noqa: PT011  (the class is what the caller compares)
        jax.jit(f)(*args, **kwargs)
    return error.value


@pytest.mark.parametrize("f", FAILING, ids=lambda f: f.__name__)
def test_errors_while_tracing_are_the_same(f):
    """Same class and same text: the function's name, its line and its arguments' names are in JAX's messages."""
    args = (1,) if f.__name__.startswith("returns") else (1, 2)
    plain, optimised = failure(f, *args), failure(ag.optimize(f), *args)
    assert type(optimised) is type(plain)
    assert str(optimised) == str(plain)


@pytest.mark.parametrize("f", FAILING, ids=lambda f: f.__name__)
def test_errors_without_jit_are_those_under_jit(f):
    """Called directly on arrays, an optimised function fails as a jitted one does."""
    args = tuple(jnp.asarray(k) for k in ((1,) if f.__name__.startswith("returns") else (1, 2)))
    plain = failure(f, *args)
    with pytest.raises(type(plain)):
        ag.optimize(f)(*args)


WRONG_CALLS = {
    "missing": ((1.0,), {}),
    "too many": ((1.0, 2.0, 3.0), {}),
    "unknown keyword": ((1.0, 2.0), {"z": 3.0}),
    "given twice": ((1.0, 2.0), {"x": 3.0}),
    "no array": ((1.0, "text"), {}),
    "object": ((1.0, {"a": [Odd()]}), {}),
    "function": ((1.0, len), {}),
    "set": ((1.0, {1, 2}), {}),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_calls_are_refused_with_the_same_words(name):
    """Missing, superfluous and untraceable arguments: Python's or JAX's message, naming `f` and the argument."""

    def f(x, y):
        return x

    args, kwargs = WRONG_CALLS[name]
    plain, optimised = failure(f, *args, **kwargs), failure(ag.optimize(f), *args, **kwargs)
    assert type(optimised) is type(plain)
    assert _without_addresses(str(optimised)) == _without_addresses(str(plain))


def _without_addresses(text: str) -> str:
    return " ".join(word for word in text.split() if "0x" not in word)


OPTIONS = {
    "static number out of range": {"static_argnums": 5},
    "unknown static name": {"static_argnames": "z"},
    "donated number out of range": {"donate_argnums": 7},
    "static and donated": {"static_argnums": 0, "donate_argnums": 0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_options_of_jit(name):
    """`jit` validates its options against `f`'s signature, through the optimised function."""

    def f(x, y):
        return x

    messages = []
    for g in (f, ag.optimize(f)):
        with pytest.raises(Exception) as error:  # noqa: PT011  (the class is compared below)
            jax.jit(g, **OPTIONS[name])(1, 2)
        messages.append((type(error.value), _without_addresses(str(error.value))))
    assert messages[0] == messages[1]


def test_unhashable_static_arguments():
    """A list as static argument is JAX's error."""

    def f(x, how):
        return x

    messages = []
    for g in (f, ag.optimize(f)):
        with pytest.raises(ValueError, match="Non-hashable") as error:
            jax.jit(g, static_argnums=1)(1, [1])
        messages.append(str(error.value))
    assert messages[0] == messages[1]


class OwnError(Exception):
    """An error of the user's."""


def raises_own(x):
    """Raises in the second of two user's frames."""
    return _innermost(x)


def _innermost(x):
    raise OwnError("mine", x.shape)


@pytest.mark.parametrize("wrap", [lambda f: f, beside_rewrite], ids=["alone", "beside a rewrite"])
def test_the_users_exception_passes_through(wrap):
    """The object itself arrives, with its arguments; nothing is chained to it or wrapped around it."""
    args = (start(),) if wrap is not beside_rewrite else (start(), start())
    error = failure(ag.optimize(wrap(raises_own)), *args)
    assert type(error) is OwnError
    assert error.args == ("mine", start().shape)
    assert error.__cause__ is None
    assert type(error.__context__) is type(failure(wrap(raises_own), *args).__context__)


@pytest.mark.parametrize("jitted", [True, False])
def test_tracebacks_hold_the_users_lines_and_none_of_ours(jitted):
    """With JAX's filtering, the frames are the user's: those that plain `jit` shows."""

    def frames(f) -> list[str]:
        with pytest.raises(OwnError) as error:
            (jax.jit(f) if jitted else f)(start())
        found = traceback.extract_tb(error.value.__traceback__)
        return [f"{frame.filename}:{frame.name}" for frame in found if "contextlib" not in frame.filename]

    filtering = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "remove_frames")
    try:
        optimised, plain = frames(ag.optimize(raises_own)), frames(raises_own)
    finally:
        jax.config.update("jax_traceback_filtering", filtering)
    assert plain[-1] == f"{__file__}:_innermost"
    assert optimised == plain


def test_a_failed_trace_leaves_nothing_behind():
    """After an error the same function and others work: no state of ours is left half set."""
    fails = [True]

    def f(x):
        if fails[0]:
            raise OwnError
        return stacked_sum(x)

    g = ag.optimize(f)
    reports = []
    h = ag.optimize(f, on_report=reports.append)
    for _ in range(2):
        failure(g, start())
        failure(h, start())
    fails[0] = False
    assert jax.jit(g)(start()) == jax.jit(h)(start())
    assert len(reports) == 1


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_swallowed(interrupt):
    """Ctrl-C while `f` is traced stops the program, as it does without `optimize`."""

    def f(x):
        raise interrupt

    with pytest.raises(interrupt):
        jax.jit(ag.optimize(f))(start())


FAILING_CALLBACK = """
import jax, jax.numpy as jnp
import aerogel as ag

def fail(x):
    raise ValueError("from the callback")

def f(x):
    return jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

def both(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=64)[1].sum(), f(x[:2])

for g in (f, ag.optimize(f), ag.optimize(both)):
    try:
        jax.block_until_ready(jax.jit(g)(jnp.ones(16384)))
    except jax.errors.JaxRuntimeError as error:
        print("ValueError: from the callback" in str(error))
"""


def test_errors_at_run_time():
    """A callback that fails in a compiled function gives JAX's error, with the user's own message in it.

    In a process of its own: JAX keeps the token of a failed callback, and every later barrier would fail.
    """
    run = subprocess.run([sys.executable, "-c", FAILING_CALLBACK], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["True"] * 3, run.stderr
