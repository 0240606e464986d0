"""Whatever `jit` takes and gives, `jit(optimize(f))` takes and gives too."""

import collections
import dataclasses
import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag

from ._programs import assert_equal_trees, assert_same, beside_rewrite, start

Pair = collections.namedtuple("Pair", "left right")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """A pytree with a static field."""

    weight: jax.Array
    bias: jax.Array | None
    name: str = dataclasses.field(metadata={"static": True})


def test_pytrees_go_in_and_come_out():
    """Dicts, tuples, named tuples, lists and registered classes, nested, keep their structure."""

    def f(tree, model):
        return {"pair": Pair(tree["a"] + 1, [model, tree["b"]]), "name": model.name and tree["a"]}

    tree = {"a": jnp.ones(3), "b": (jnp.zeros(2), [jnp.arange(4)])}
    assert_same(f, tree, Model(jnp.ones((2, 2)), jnp.ones(2), "dense"))


def test_none_is_a_leafless_tree():
    """`None` passes through in arguments and results, and `f` sees it as `None`."""

    def f(x, state):
        assert state["velocity"] is None
        return x, None, {"velocity": state["velocity"], "step": state["step"] + 1}

    assert_same(f, jnp.ones(3), {"velocity": None, "step": jnp.int32(0)})


@pytest.mark.parametrize("value", [(), None, {}, [[], {}]], ids=lambda x: repr(x).split(" at 0x")[0])
def test_no_arrays_at_all(value):
    """A function without an array, in or out, is a function still."""
    assert_same(lambda tree: tree, value)


def test_no_arguments_at_all():
    """A program without inputs gives its constants."""
    assert_same(lambda: (jnp.arange(3), jnp.zeros((2, 0)), 2.0))


def test_default_keyword_and_variadic_arguments():
    """Positional-only, default, keyword-only, `*args` and `**kwargs` bind as Python binds them."""

    def f(a, /, b=2.0, *rest, scale=3.0, **others):
        total = a * b * scale
        for x in (*rest, *others.values()):
            total = total + x
        return total, tuple(others)

    def g(*args, **kwargs):
        return f(*args, **kwargs)[0]

    x = jnp.arange(4.0)
    assert_same(g, x)
    assert_same(g, x, x + 1)
    assert_same(g, x, x + 1, x + 2, x + 3)
    assert_same(g, x, scale=x, z=x + 1, a2=x + 2)
    np.testing.assert_array_equal(jax.jit(ag.optimize(lambda a, /, b=2.0, *, c=3.0: a * b * c))(x, c=x), 2 * x * x)


def test_keyword_and_positional_calls_agree():
    """Arguments of jit's own resolution (a keyword for a positional parameter) reach the same place."""

    def f(x, y, z):
        return x + 2 * y + 3 * z

    g = jax.jit(ag.optimize(f))
    x, y, z = jnp.ones(2), jnp.zeros(2), jnp.full(2, 5.0)
    assert_equal_trees(g(z=z, y=y, x=x), f(x, y, z))


class Mode(enum.Enum):
    """A static argument that is no number."""

    TRAIN = 1


STATIC = ["relu", 3, True, False, 2.5, None, (1, "a"), Mode.TRAIN, jnp.tanh, len, float]


@pytest.mark.parametrize("static", STATIC, ids=lambda x: repr(x).split(" at 0x")[0])
@pytest.mark.parametrize(
    "options", [{"static_argnums": 1}, {"static_argnums": -1}, {"static_argnames": "how"}], ids=str
)
def test_static_arguments_reach_the_function_untouched(static, options):
    """By number, from the end, by name: `f` receives the very object, not an array made of it."""
    seen = []

    def f(x, how):
        seen.append(how)
        return x * 2

    g = jax.jit(ag.optimize(f), **options)
    g(jnp.ones(3), static)
    assert len(seen) == 1
    assert seen[0] is static


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": "how"}], ids=str)
def test_static_arguments_by_keyword(options):
    """`jit` resolves numbers to names by the signature: it must be `f`'s."""

    def f(x, how):
        assert how == "relu"
        return x * 2

    assert_equal_trees(jax.jit(ag.optimize(f), **options)(jnp.ones(3), how="relu"), 2 * jnp.ones(3))


def test_static_arguments_steer_python():
    """A static number counts Python loops, a static function is called, a static boolean decides."""

    def f(x, repeats, act, double):
        for _ in range(repeats):
            x = act(x)
        return 2 * x if double else x

    g = jax.jit(ag.optimize(f), static_argnums=(1, 2), static_argnames="double")
    x = jnp.ones(3)
    assert_equal_trees(g(x, 3, jnp.sin, double=True), jax.jit(lambda x: 2 * jnp.sin(jnp.sin(jnp.sin(x))))(x))
    assert_equal_trees(g(x, 1, jnp.cos, double=False), jax.jit(jnp.cos)(x))


def test_a_static_argument_in_a_rewritten_program():
    """The number of steps of the loop that is rewritten may itself be static."""

    def f(x, length):
        return jax.lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=length)[1].sum()

    x = start()
    for length in (64, 100):
        got = jax.jit(ag.optimize(f), static_argnums=1)(x, length)
        np.testing.assert_allclose(got, jax.jit(f, static_argnums=1)(x, length), rtol=1e-5)


def test_without_jit_plain_python_values_stay_plain():
    """Called directly, only arrays are traced: numbers, strings and functions may steer Python."""

    def f(x, repeats, act, how):
        assert how == "relu"
        for _ in range(repeats):
            x = act(x)
        return x

    np.testing.assert_allclose(ag.optimize(f)(jnp.ones(3), 2, jnp.sin, "relu"), np.sin(np.sin(np.ones(3))), rtol=1e-6)


@pytest.mark.parametrize(
    "value",
    [1, 2.5, True, 1j, np.float32(2.5), np.int8(3), np.bool_(True), np.arange(3), np.ones((2, 0), np.float32)],
    ids=lambda v: f"{type(v).__name__}-{v}",
)
def test_python_and_numpy_values_as_arguments(value):
    """Python scalars arrive weakly typed, NumPy scalars and arrays with their own type."""
    assert_same(lambda x: (x, x + x, {"x": x}), value)


def test_numpy_arrays_closed_over():
    """Closed-over NumPy and JAX arrays are constants of the program."""
    table, shift = np.arange(12.0, dtype=np.float32).reshape(3, 4), jnp.ones(3)
    assert_same(lambda x: table @ x + shift, jnp.ones(4))


def test_the_same_array_twice():
    """One array passed as two arguments is two inputs."""
    x = jnp.arange(3.0)
    assert_same(lambda a, b, c: (a + b, b * c, a), x, x, x)


def test_unused_and_repeated_arguments():
    """Arguments that nothing reads change nothing, whatever their type."""
    assert_same(lambda a, b, c: b + b, jnp.ones(2), jnp.arange(3), jax.random.key(0))


def test_called_without_jit():
    """`optimize(f)` by itself gives JAX arrays of the types that `f` gives."""

    def f(x):
        return x * 2, jnp.float32(3), 4.0, x

    x = jnp.arange(3.0)
    got = ag.optimize(f)(x)
    assert all(isinstance(leaf, jax.Array) for leaf in (got[0], got[1], got[3]))
    assert [leaf.shape for leaf in (got[0], got[1], got[3])] == [(3,), (), (3,)]
    assert float(got[2]) == 4.0
    total, pair = ag.optimize(beside_rewrite(f))(start(), x)
    assert isinstance(total, jax.Array)
    assert isinstance(pair[1], jax.Array)
