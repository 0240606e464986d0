"""`ag.jit` is `jax.jit` for whoever passes arrays, and takes everything else too."""

import copy
import functools
import gc
import inspect
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel.transform._split import joined, split
from module.drawn import modules


class Linear(ag.Module):
    weight: Any
    scale: float = 1.0

    def __call__(self, x: Any, activation: Any = None) -> Any:
        y = self.weight @ x * self.scale
        return y if activation is None else activation(y)

    def twice(self, x: Any, k: int = 1) -> Any:
        return 2 * k * self(x)

    @ag.jit
    def compiled(self, x: Any) -> Any:
        """A method's own text."""
        return self(x), "name"


def linear(scale: float = 1.0) -> Linear:
    """A new layer."""
    return Linear(jnp.eye(2), scale)


X = np.array([1.0, -2.0], np.float32)


def counted(f: Any, **options: Any) -> tuple[Any, list[int]]:
    """`ag.jit` of a copy of `f`, and a list that grows with each trace."""
    traces: list[int] = []

    @functools.wraps(f)
    def traced(*args: Any, **kwargs: Any) -> Any:
        traces.append(1)
        return f(*args, **kwargs)

    return ag.jit(traced, **options), traces


def test_is_a_decorator_with_and_without_arguments() -> None:
    """Name, text and signature are those of the function, whichever way it was decorated."""

    def f(x: Any, *, y: int = 2) -> Any:
        """Text."""
        return x * y

    for g in (ag.jit(f), ag.jit()(f), ag.jit(donate="none")(f), ag.jit(f, static_argnames="y")):
        assert (g.__name__, g.__doc__, inspect.signature(g)) == ("f", "Text.", inspect.signature(f))
        assert g(3.0) == 6.0
        assert g.__wrapped__ is f


@pytest.mark.parametrize(
    ("options", "args", "kwargs"),
    [
        ({"static_argnums": 1}, (X, 3), {}),
        ({"static_argnums": -1}, (X, 3), {}),
        ({"static_argnames": ("n",)}, (X,), {"n": 3}),
        ({"keep_unused": True, "inline": True}, (X, 3), {}),
        ({"in_shardings": None, "out_shardings": None}, (X, 3), {}),
        ({"compiler_options": {"xla_cpu_enable_fast_math": False}}, (X, 3), {}),
        ({"donate_argnames": "x"}, (jnp.asarray(X), 3), {}),
    ],
    ids=str,
)
def test_takes_what_jax_jit_takes(options: Any, args: Any, kwargs: Any) -> None:
    """Every option of `jax.jit` means there what it means here."""
    f = lambda x, n: x * n  # noqa: E731
    want = jax.jit(f, **options)(*(x if isinstance(x, int) else x.copy() for x in args), **kwargs)
    np.testing.assert_array_equal(ag.jit(f, **options)(*args, **kwargs), want)


def test_numbers_are_traced_and_the_rest_is_static() -> None:
    """Other numbers need no trace; other strings, functions, dtypes and other objects do, old ones again do not."""
    f, traces = counted(lambda x, how, other: (how(x) if callable(how) else x, other))
    for n, (how, other) in enumerate([(jnp.sin, "a"), (jnp.cos, "a"), (jnp.cos, "b"), (jnp.float32, "b")], 1):
        for number in (1, 2):
            assert f(number * X, how, other)[1] == other
        assert len(traces) == n
    f(X, jnp.sin, "a")
    assert len(traces) == 4
    for flag in (True, False, 1.5, 2):
        f(X, flag, flag)
    assert len(traces) == 7  # a bool, a float, an integer


def test_values_that_are_no_arrays_stand_at_any_depth() -> None:
    """In dicts, tuples and other libraries' modules, by position and by name, in and out."""
    f, traces = counted(lambda tree, *, extra: {"a": tree["a"] * 2, "f": tree["f"], "deep": [extra, ("x", None)]})
    for _ in range(3):
        out = f({"a": X, "f": jnp.sin}, extra=(1.0, np.dtype("int8")))
        np.testing.assert_array_equal(out["a"], X * 2)
        assert out["f"] is jnp.sin
        assert out["deep"][0][1] == np.dtype("int8")
        assert out["deep"][1] == ("x", None)
    assert len(traces) == 1


def test_what_cannot_be_hashed_is_refused_by_name() -> None:
    """The error is Aerogel's and names the argument."""
    with pytest.raises(ag.StructureError, match="argument 'bad'"):
        ag.jit(lambda x, bad: x)(X, bad=bytearray(b"x"))


def test_a_type_error_of_the_function_comes_through() -> None:
    """It is not taken for an argument that is no array: the function runs once."""
    calls = []

    def f(x: Any, y: Any) -> Any:
        calls.append(1)
        raise TypeError("mine")

    g = ag.jit(f)
    for y in (1.0, "static", "static", 1.0):
        with pytest.raises(TypeError, match="mine"):
            g(X, y)
    assert len(calls) == 4


@settings(max_examples=60)
@given(modules(), st.sampled_from(["text", jnp.sin, None, (1, "a")]))
def test_trees_divide_and_join(model: Any, value: Any) -> None:
    """`split` and `joined` are inverse; equal values give one structure; a tree of arrays is left alone."""
    tree = {"model": model, "value": value, "list": [value, 1.0]}
    back = joined(split(tree))
    assert back == tree
    again = split(jax.tree.map(lambda x: x, tree))
    assert jax.tree.structure(split(tree)) == jax.tree.structure(again)
    assert split(model) is model


def test_modules_and_their_methods_are_callables() -> None:
    """Their arrays are arguments: a program holds none of them, and positions count from the first argument."""
    model = linear(3.0)
    want = model(X)
    for f in (ag.jit(model), ag.jit(model.__call__), ag.jit(jax.tree_util.Partial(Linear.__call__, model))):
        for _ in range(2):
            np.testing.assert_array_equal(f(X), want)
        np.testing.assert_array_equal(f(X, jax.nn.relu), jax.nn.relu(want))
        assert not f.trace(X).jaxpr.consts
    g = ag.jit(model.twice, static_argnums=1)
    np.testing.assert_array_equal(g(X, 3), 6 * want)
    np.testing.assert_array_equal(ag.jit(model.twice, static_argnames="k")(X, k=3), 6 * want)
    assert (g.__name__, ag.jit(model).__name__) == ("twice", "Linear")
    assert repr(ag.jit(model)) == f"ag.jit({model!r})"


def test_methods_in_a_class_body() -> None:
    """A decorated method is one, on instances that came out of compiled functions too."""
    for model in (linear(), ag.jit(lambda m: m)(linear())):
        out, name = model.compiled(X)
        np.testing.assert_array_equal(out, X)
        assert name == "name"
    assert Linear.compiled.__doc__ == "A method's own text."


def test_modules_of_other_libraries() -> None:
    """Equinox's hold functions and numbers, NNX states are states; both go in, come out and are traced once."""
    mlp = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    f, traces = counted(lambda m, x: (m(x), m))
    want = mlp(X)
    for _ in range(3):
        out, mlp = f(mlp, X)
        np.testing.assert_allclose(out, want, rtol=1e-6)
    assert isinstance(mlp, eqx.nn.MLP)
    assert len(traces) == 1
    np.testing.assert_allclose(ag.jit(mlp)(X), want, rtol=1e-6)
    graph, state = nnx.split(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    g = ag.jit(lambda graph, state, x: (nnx.merge(graph, state)(x), state))
    for _ in range(2):
        out, state = g(graph, state, X)
    np.testing.assert_allclose(out, nnx.merge(graph, state)(X), rtol=1e-6)


def test_ahead_of_time() -> None:
    """`trace`, `lower` and `eval_shape` take what calls take, shapes too."""
    f = ag.jit(lambda m, x, how: (how(m(x)), "text"))
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert f.eval_shape(linear(), shape, jnp.sum) == (jax.ShapeDtypeStruct((), jnp.float32), "text")
    g = ag.jit(lambda m, x: m(x))
    compiled = g.lower(linear(2.0), shape).compile()
    np.testing.assert_array_equal(compiled(linear(2.0), X), 2 * X)
    assert len(g.trace(linear(), X).jaxpr.in_avals) == 2
    h, traces = counted(lambda x: x)
    h(X), h.clear_cache(), h(X)
    assert len(traces) == 2


class Scaled(ag.Module):
    """A model whose method takes a function."""

    weight: jax.Array
    how: Callable[..., Any] = jnp.negative

    def __call__(self, x: Any, then: Callable[..., Any] = jnp.abs) -> Any:
        return then(self.how(self.weight * x)), then


AHEAD = {
    "a static value": (lambda m, x, how: how(m(x)[0]), {}, (jnp.sin,), {}),
    "by name": (lambda m, x, *, how: how(m(x)[0]), {}, (), {"how": jnp.sin}),
    "deep in a dict": (lambda m, x, how: (how["f"](m(x)[0]) * how["by"], how), {}, ({"f": jnp.sin, "by": 2.0},), {}),
    "in the result only": (lambda m, x: m(x), {}, (), {}),
    "all donated": (lambda m, x, how: (how(m(x)[0]), m), {"donate": "all"}, (jnp.sin,), {}),
    "state donated": (lambda m, x, how: (how(m(x)[0]), m), {"donate": "state"}, (jnp.sin,), {}),
    "static by position": (lambda m, x, n, how: how(m(x)[0]) * n, {"static_argnums": 2}, (3, jnp.sin), {}),
    "static by name": (lambda m, x, how, n: how(m(x)[0]) * n, {"static_argnames": "n"}, (jnp.sin,), {"n": 3}),
    "nothing but arrays": (lambda m, x: m(x)[0], {}, (), {}),
}


@pytest.mark.parametrize("name", AHEAD)
def test_what_is_compiled_ahead_takes_what_calls_take(name: str) -> None:
    """`lower(...).compile()` and `trace(...).lower().compile()` give what a call gives, of arrays and of shapes.

    As in JAX, arguments that are static by position or name are left out of the call.
    """
    f, options, args, kwargs = AHEAD[name]
    g = ag.jit(f, **options)
    shapes = jax.eval_shape(lambda: (Scaled(jnp.ones(2)), X))
    given = [x for i, x in enumerate(args, 2) if i != options.get("static_argnums")]
    named = {key: x for key, x in kwargs.items() if key != options.get("static_argnames")}
    want = f(Scaled(jnp.full(2, 3.0)), X, *args, **kwargs)
    for stage in (g.lower(*shapes, *args, **kwargs), g.trace(*shapes, *args, **kwargs).lower()):
        got = stage.compile()(Scaled(jnp.full(2, 3.0)), X + 0, *given, **named)
        assert jax.tree.structure(got) == jax.tree.structure(want)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert one is other or np.allclose(one, other)
        assert jax.tree.structure(stage.out_info) == jax.tree.structure(want)
        (model, *_), _ = stage.args_info
        assert isinstance(model, Scaled)
        assert "stablehlo" in stage.as_text()


@pytest.mark.parametrize("callable_", [Scaled(jnp.ones(2)), Scaled(jnp.ones(2)).__call__], ids=["module", "method"])
def test_a_callable_with_arrays_is_compiled_ahead(callable_: Any) -> None:
    """Its own arrays go along by themselves."""
    compiled = ag.jit(callable_).lower(jax.ShapeDtypeStruct((2,), "float32"), jnp.sin).compile()
    out, then = compiled(X, jnp.sin)
    np.testing.assert_allclose(out, jnp.sin(-X))
    assert then is jnp.sin
    assert len(compiled.args_info[0]) == 2
    with pytest.raises(ag.ArgumentsError, match=r"x  f32\[2\] -> f32\[3\]"):
        compiled(jnp.ones(3), jnp.sin)


def test_other_arguments_than_compiled_for_are_told_by_path() -> None:
    """Another static value, another type, too few and too many arguments: a line for each difference."""
    compiled = ag.jit(lambda m, x, how: how["f"](m(x)[0])).lower(Scaled(jnp.ones(2)), X, {"f": jnp.sin}).compile()
    model, how = Scaled(jnp.ones(2)), {"f": jnp.sin}
    wrong = {
        "how['f']  sin -> cos": (model, X, {"f": jnp.cos}),
        "x  f32[2] -> f32[3]": (model, jnp.ones(3), how),
        "m.how  <jnp.ufunc 'negative'> -> abs": (Scaled(jnp.ones(2), jnp.abs), X, how),
        "x  f32[2] -> nothing\nhow  dict -> nothing\nhow['f']  sin -> nothing": (model,),
        "args[3]  nothing -> f32[]": (model, X, how, jnp.float32(1)),
    }
    for changes, args in wrong.items():
        with pytest.raises(ag.ArgumentsError) as caught:
            compiled(*args)
        assert [line.split() for line in caught.value.changes.splitlines()] == [
            line.split() for line in changes.splitlines()
        ]
    with pytest.raises(TypeError, match="Cannot apply JAX transformations"):
        jax.vmap(lambda x: compiled(model, x, how))(jnp.ones((3, 2)))


def test_what_wraps_a_compiled_function_is_lowered_itself() -> None:
    """A gradient carries the attributes of the function that it wraps: `lower` among them, which is not its own."""
    compiled = ag.jit(ag.value_and_grad(ag.jit(lambda x: jnp.sum(x**2)))).lower(X).compile()
    assert len(jax.tree.leaves(compiled.out_info)) == 2
    _, gradient = compiled(X)
    np.testing.assert_allclose(gradient, 2 * X)


def test_stages_are_jaxs_where_nothing_was_divided() -> None:
    """With arrays and modules only, `lower` and `trace` return JAX's own objects, whose errors name what is static."""
    g = ag.jit(lambda m, x: m(x)[0])
    lowered = g.lower(Scaled(jnp.ones(2)), X)
    assert isinstance(lowered, jax.stages.Lowered)
    assert isinstance(g.trace(Scaled(jnp.ones(2)), X), jax.stages.Traced)
    with pytest.raises(TypeError, match=r"how=negative.*how=abs"):
        lowered.compile()(Scaled(jnp.ones(2), jnp.abs), X)


def test_two_jits_of_one_function_share_a_trace() -> None:
    """`ag.jit(f)(x)` in a loop compiles once, as with JAX."""
    traces = []

    def f(x: Any) -> Any:
        traces.append(1)
        return x + 1

    for _ in range(3):
        ag.jit(f)(X)
    assert len(traces) == 1


def test_jits_of_models_of_one_class_share_a_trace() -> None:
    """`ag.jit(model)(x)` and `ag.jit(model.method)(x)` in a loop compile once; a subclass keeps its name."""
    traces = []

    class Scale(ag.Module):
        factor: jax.Array

        def __call__(self, x: Any) -> Any:
            traces.append(1)
            return self.factor * x

        def half(self, x: Any) -> Any:
            traces.append(2)
            return self.factor * x / 2

    class Other(Scale):
        pass

    for factor in (1.0, 2.0, 3.0):
        model = Scale(jnp.array(factor))
        np.testing.assert_array_equal(ag.jit(model)(X), factor * X)
        np.testing.assert_array_equal(ag.jit(model.half)(X), factor * X / 2)
    assert traces == [1, 2]
    other = ag.jit(Other(jnp.array(2.0)))
    assert other.__name__ == "Other"
    assert "jit_Other" in other.lower(X).as_text()
    np.testing.assert_array_equal(other(X), 2 * X)


def test_functions_are_not_kept_alive() -> None:
    """When the last reference to a compiled function goes, it and what it closed over are freed."""

    class Large:
        pass

    def make() -> tuple[Any, Any]:
        held = Large()
        f = ag.jit(lambda x: x if held else None)
        f(X)
        return f, weakref.ref(held)

    f, held = make()
    assert held() is not None
    del f
    jax.clear_caches()
    gc.collect()
    assert held() is None


def test_optimises_the_whole_program() -> None:
    """The gradient inside is optimised with the rest; `passes=()` leaves it alone; `numerics` is checked."""

    def total(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c / 2, c), x, None, length=64)[1].sum()

    def stacked(f: Any) -> bool:
        return any(v.aval.shape == (64, 1000) for e in f.trace(jnp.ones(1000)).jaxpr.eqns for v in e.outvars)

    assert stacked(ag.jit(total, passes=()))
    assert not stacked(ag.jit(lambda x: total(x)))
    for options in ({"numerics": "fst"}, {"donate": "som"}):
        with pytest.raises(ag.UsageError):
            ag.jit(total, **options)


def update(model: Any, state: Any, batch: Any) -> Any:
    """What a training step returns."""
    return jax.tree.map(lambda w: w + batch["x"].sum(), model), {"count": state["count"] + 1}, batch["x"] * 2


@pytest.mark.parametrize(
    ("donate", "gone"), [("none", (False, False, False)), ("all", (True, True, True)), ("state", (True, True, False))]
)
def test_donation(donate: Any, gone: Any) -> None:
    """What comes back with its structure and types is state, and the batch is not."""
    f = ag.jit(update, donate=donate)
    for _ in range(2):
        args = linear(), {"count": jnp.zeros(())}, {"x": jnp.ones((3,))}
        new, state, _doubled = f(*args)
        assert tuple(all(x.is_deleted() for x in jax.tree.leaves(a)) for a in args) == gone
    assert state["count"] == 1
    assert new.weight.shape == (2, 2)


def test_state_of_other_types_is_found_too() -> None:
    """Which arguments come back may depend on their types: each call donates its own, and lone arrays never."""
    f = ag.jit(lambda a, b: ({k: v + 1 for k, v in a.items()}, jax.tree.leaves(b)[0] * 2), donate="state")

    def gone(a: Any, b: Any) -> tuple[bool, bool]:
        f(a, b)
        return tuple(all(x.is_deleted() for x in jax.tree.leaves(t)) for t in (a, b))  # type: ignore[return-value]

    def tree(*keys: str) -> Any:
        return {key: jnp.ones(2) for key in keys}

    for _ in range(2):
        assert gone(tree("u"), jnp.ones(2)) == (True, False)
        assert gone(tree("u", "v"), {"w": jnp.ones(3)}) == (True, False)
    g = ag.jit(lambda x, y: (jax.tree.map(lambda w: w + 1, y if isinstance(y, dict) else x), 0.0), donate="state")
    for _ in range(2):
        for args, wanted in (
            (({"a": jnp.ones(2)}, jnp.ones(2)), (True, False)),
            (({"a": jnp.ones(2)}, {"b": jnp.ones(2)}), (False, True)),
        ):
            g(*args)
            assert tuple(all(x.is_deleted() for x in jax.tree.leaves(t)) for t in args) == wanted


def test_donation_of_named_and_chosen_arguments() -> None:
    """Arguments by name are donated too; those given as `donate_argnums` as well; the callable never."""
    model, state = linear(), {"n": jnp.zeros(2)}
    f = ag.jit(lambda x, *, state: ({"n": state["n"] + x}, x), donate="state")
    f(jnp.ones(2), state=state)
    assert state["n"].is_deleted()
    x = jnp.ones(2)
    ag.jit(model, donate="all")(x)
    assert x.is_deleted()
    assert not model.weight.is_deleted()


def test_nested_with_jax_and_transformed() -> None:
    """`ag.jit` in `jax.jit` in `ag.jit`, and each of JAX's transformations of it, with modules and static values."""
    f = ag.jit(lambda m, x, how=jnp.sum: how(m(x)))
    model = linear(2.0)
    outer = ag.jit(lambda m, x: jax.jit(lambda m, x: f(m, x) + f(m, x, jnp.max))(m, x))
    assert outer(model, X) == f(model, X) + f(model, X, jnp.max)
    grads = jax.grad(f)(model, X)
    np.testing.assert_array_equal(grads.weight, np.outer([2.0, 2.0], X))
    np.testing.assert_array_equal(jax.vmap(f, (None, 0))(model, jnp.stack([X, X])), [f(model, X)] * 2)
    assert jax.jvp(f, (model, X), (model, X))[1] == 2 * f(model, X)
    last, _ = jax.lax.scan(lambda c, _: (jax.tree.map(lambda w: w * f(c, X), c), None), model, None, length=2)
    assert jax.tree.structure(last) == jax.tree.structure(model)
    with jax.disable_jit():
        assert f(model, X, jnp.max) == 2.0


def python_calls(f: Any, *args: Any) -> list[str]:
    """The names of the Python functions that a third call of `f` enters."""
    f(*args), f(*args)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        f(*args)
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("donate", ["none", "state"])
def test_a_warm_call_runs_no_python(donate: str) -> None:
    """JAX's C++ code answers known calls; only what they return is put together in Python, once per module."""
    assert python_calls(ag.jit(lambda m, x: m(x), donate=donate), linear(), X) == []
    assert python_calls(ag.jit(linear()), X) == []
    grow = ag.jit(lambda m: jax.tree.map(lambda w: 2 * w, m))
    assert python_calls(grow, linear()) == ["unflatten_whole"]
    named = ag.jit(lambda m, x: {"y": m(x), "name": "text"})
    assert python_calls(named, linear(), X) == ["<lambda>", "Layout.whole"]


def test_a_warm_call_with_another_value_that_is_no_array_is_another_program() -> None:
    """After calls that C++ code answered, one with a function in it is divided, and then the old ones are as before."""
    g, traces = counted(lambda m, x, how=jnp.sum: how(m(x)))
    for _ in range(3):
        assert g(linear(), X) == X.sum()
    for _ in range(3):
        assert g(linear(), X, jnp.max) == X.max()
    assert python_calls(g, linear(), X) == []
    assert len(traces) == 2


def test_reentrant_tracing_and_generators() -> None:
    """A function that calls itself while it is traced, and generators between whose steps others trace."""

    @ag.jit
    def factorial(model: Any, n: Any) -> Any:
        return model.weight[0, 0] * (n.shape[0] * factorial(model, n[1:]) if n.shape[0] else 1)

    assert factorial(linear(), jnp.ones(5)) == 120

    def steps(name: str) -> Any:
        model = linear()
        while True:
            model, got = ag.jit(lambda m: (jax.tree.map(lambda w: w + 1, m), name))(model)
            yield float(model.weight[0, 1]), got

    first, second = steps("a"), steps("b")
    assert [next(g) for g in (first, second, first)] == [(1.0, "a"), (1.0, "b"), (2.0, "a")]


def test_threads() -> None:
    """Sixteen threads trace and call one function with arguments of different structure and static values."""
    f = ag.jit(lambda model, x, name: (jax.tree.map(lambda w: w + x, model), name))
    start = threading.Barrier(16)

    def work(i: int) -> None:
        model, name = [linear(float(j)) for j in range(i % 4 + 1)], f"name {i % 3}"
        start.wait()
        for _ in range(10):
            model, got = f(model, 1.0, name)
            assert got == name
        assert len(model) == i % 4 + 1
        np.testing.assert_array_equal(model[0].weight, np.eye(2) + 10)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns of what this is about
def test_fork() -> None:
    """A child reads what its parent's functions returned, and traces new ones."""
    result = ag.jit(lambda m: m)(ag.jit(lambda m: m)(linear()))
    child = os.fork()
    if child == 0:
        ok = result.scale == 1.0 and ag.eval_shape(ag.jit(lambda m, s: m), result, "x").weight.shape == (2, 2)
        os._exit(0 if ok else 1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            return
        time.sleep(0.1)
    os.kill(child, 9)
    pytest.fail("the child hangs")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_while_tracing(error: type[BaseException]) -> None:
    """After one, the function is traced again and works."""
    fails = [True]

    @ag.jit
    def f(model: Any, x: Any) -> Any:
        if fails.pop() if fails else False:
            raise error
        return model(x)

    with pytest.raises(error):
        f(linear(), X)
    np.testing.assert_array_equal(f(linear(), X), X)


def test_explain_and_verify_look_inside() -> None:
    """What `ag.jit` made is explained as it was written, donation and static values or not, and verified."""

    @ag.jit(donate="state", static_argnames="n")
    def total(model: Any, x: Any, how: Any, n: int = 2) -> Any:
        ys = jax.lax.scan(lambda c, _: (c / n, how(c)), x, None, length=64)[1]
        return model, ys.sum(), "name"

    report = ag.explain(total)(linear(), jnp.ones(1000), jnp.sin, n=4)
    assert "loop-fusion" in [decision.rule for decision in report.fired]
    model = linear()
    assert ag.verify(total)(model, jnp.ones(1000), jnp.sin)[2] == "name"
    assert not model.weight.is_deleted()
    assert not ag.explain(ag.jit(linear()))(X).failed


def test_shardings_of_modules() -> None:
    """One sharding for a module means all of its arrays, keys too, in and out, also when the module is the callable."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    split_up, whole = (jax.NamedSharding(mesh, jax.P(*names)) for names in (["d"], []))
    x = jnp.ones(len(jax.devices()))
    model = {"layer": Linear(jnp.eye(len(x))), "key": jax.random.key(0)}
    f = ag.jit(lambda m, x, how: (m, how(m["layer"](x))), in_shardings=(whole, split_up, None), out_shardings=None)
    g = ag.jit(lambda m, x: (m, m["layer"](x)), in_shardings=(whole, split_up), out_shardings=(whole, split_up))
    for _ in range(3):
        model, y = g(model, x)
        assert y.sharding == split_up
        assert model["layer"].weight.sharding == whole
    np.testing.assert_array_equal(f(model, x, jnp.negative)[1], -x)
    assert ag.jit(model["layer"], in_shardings=(split_up,), out_shardings=split_up)(x).sharding == split_up


def test_what_jax_makes_of_a_compiled_function_is_traced_itself() -> None:
    """`functools.wraps` copies attributes: the stages of a compiled function are not those of its gradient."""
    cube = ag.jit(lambda x: (x**3).sum())
    x = jnp.arange(3.0)
    assert jax.jit(jax.grad(cube)).lower(x).out_info.shape == (3,)
    assert [aval.shape for aval in jax.make_jaxpr(jax.vmap(ag.jit(jnp.sin)))(x).out_avals] == [(3,)]
    assert jax.make_jaxpr(jax.grad(cube))(x).out_avals[0].shape == (3,)
    assert cube.lower(x).out_info.shape == ()


def test_a_compiled_function_is_pickled_by_name() -> None:
    """As the function that it was made of would be."""
    assert pickle.loads(pickle.dumps(_doubled)) is _doubled
    assert copy.deepcopy(_doubled) is _doubled


@ag.jit
def _doubled(x: Any) -> Any:
    return 2 * x
