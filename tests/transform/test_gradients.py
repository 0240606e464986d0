"""Gradients and their kin: JAX's own numbers for inexact arrays, None for all else, with anything in the arguments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel._jax import Tracer
from module.drawn import modules


class Line(ag.Module):
    slope: Any
    offset: Any
    steps: Any = 3
    name: str = "line"

    def __call__(self, x: Any) -> Any:
        return self.slope * x + self.offset


def line() -> Line:
    """A line with an integer array beside its parameters."""
    return Line(jnp.array(2.0), jnp.array(1.0), jnp.array(3))


def assert_trees(got: Any, want: Any) -> None:
    """Equal structure, with None as it stands, and equal numbers."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


def squares(tree: Any) -> Any:
    """A scalar in which every inexact leaf counts."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return sum(((jnp.asarray(x, jnp.float32) ** 2).sum() for x in leaves), jnp.zeros(()))


@settings(max_examples=60)
@given(modules())
def test_inexact_arrays_have_gradients_and_the_rest_none(model: Any) -> None:
    """For any module: the tree of gradients has its structure, with None exactly where nothing is inexact."""
    real = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, model)
    inexact = [jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(real)]
    if not any(inexact):
        with pytest.raises(ag.GradientError):
            ag.grad(squares)(real)
        return
    grads = ag.grad(squares)(real)
    found = jax.tree.structure(real).flatten_up_to(grads)
    for x, g, has_one in zip(jax.tree.leaves(real), found, inexact, strict=True):
        if has_one:
            np.testing.assert_allclose(np.asarray(g, np.float32), 2 * np.asarray(x, np.float32))
        else:
            assert g is None


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1, 0), -1, [1]], ids=str)
def test_argnums_are_jaxs(argnums: Any) -> None:
    """An integer gives a tree, several give a tuple, negative ones count from the end."""
    f = lambda x, y: jnp.sin(x) * y**2  # noqa: E731
    want = jax.value_and_grad(f, argnums)(1.5, 2.5)
    assert_trees(ag.value_and_grad(f, argnums)(1.5, 2.5), want)
    assert_trees(ag.grad(f, argnums)(1.5, 2.5), want[1])


def test_aux_may_be_anything() -> None:
    """Strings and functions beside arrays, under `ag.jit` too."""
    f = lambda m, x, how: (how(m(x)), {"how": how, "n": m.steps, "name": m.name})  # noqa: E731
    for g in (ag.value_and_grad(f, has_aux=True), ag.jit(ag.value_and_grad(f, has_aux=True))):
        (value, aux), grads = g(line(), 2.0, jnp.square)
        assert value == 25.0
        assert aux["how"] is jnp.square
        assert (int(aux["n"]), aux["name"]) == (3, "line")
        assert (grads.slope, grads.offset, grads.steps) == (20.0, 10.0, None)
    grads, aux = ag.grad(f, has_aux=True)(line(), 2.0, jnp.square)
    assert (grads.slope, aux["name"]) == (20.0, "line")


@pytest.mark.parametrize(
    ("wrt", "wanted"),
    [
        ("slope", (2.0, None)),
        (["slope", "offset"], (2.0, 1.0)),
        (lambda path, x: path == "offset", (None, 1.0)),
        (lambda m: m.slope, (2.0, None)),
        (jax.Array, (2.0, 1.0)),
        (ag.trainable, (2.0, 1.0)),
    ],
    ids=["path", "paths", "predicate", "function", "type", "trainable"],
)
def test_wrt_chooses_parts(wrt: Any, wanted: Any) -> None:
    """By path, by predicate, by function, by type; what is not meant has None."""
    grads = ag.grad(lambda m, x: m(x), wrt=wrt)(line(), 2.0)
    assert (grads.slope, grads.offset) == wanted
    assert grads.steps is None


def test_frozen_parameters_have_none() -> None:
    """Also where the frozen one is tied to another place."""
    grads = ag.grad(lambda m, x: m(x))(ag.freeze(line(), "offset"), 2.0)
    assert (grads.slope, grads.offset) == (2.0, None)
    with pytest.raises(ag.GradientError, match=r"ag\.unfreeze"):
        ag.grad(lambda m, x: m(x))(ag.freeze(line()), 2.0)


def test_ties_add_up() -> None:
    """One leaf, one gradient, the sum over its places."""
    w = jnp.array(3.0)
    grads = ag.grad(lambda m: m.slope * m.offset)(Line(w, w))
    assert len(jax.tree.leaves(grads)) == 1
    assert grads.slope == grads.offset == 6.0


def test_what_has_no_gradient_is_told() -> None:
    """Integers, no such argument, a result that is no scalar: errors, the last one JAX's own."""
    with pytest.raises(ag.GradientError, match=r"(?s)i32\[\].*pass 1\.0 for 1"):
        ag.grad(lambda x: x)(3)
    with pytest.raises(ag.GradientError, match="1 positional arguments"):
        ag.grad(lambda x, y=1.0: x, argnums=1)(3.0)
    with pytest.raises(ag.UsageError):
        ag.grad(lambda x: x, argnums="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scalar-output"):
        ag.grad(lambda x: x)(jnp.ones(2))
    with pytest.raises(ag.PathError):
        ag.grad(lambda m: m(1.0), wrt="slop")(line())
    with pytest.raises(ag.UsageError, match="argument `wrt`"):
        ag.grad(lambda m: m(1.0), wrt=line())(line())


def test_holomorphic_and_integers_as_in_jax() -> None:
    """The two options that change what has a gradient."""
    f = lambda z: z**2  # noqa: E731
    assert ag.grad(f, holomorphic=True)(1.0 + 2.0j) == jax.grad(f, holomorphic=True)(1.0 + 2.0j)
    got = ag.grad(lambda t: t[0] * t[1], allow_int=True)((2.0, 3))
    assert got[0] == 3.0
    assert got[1].dtype == jax.dtypes.float0


def test_products_with_tangents_and_cotangents() -> None:
    """`jvp`, `linearize` and `vjp` give JAX's numbers; tangents may be gradients with their Nones."""
    f = lambda m, x, how: {"y": how(m(x)), "n": m.steps, "how": how}  # noqa: E731
    plain = lambda slope, offset, x: jnp.sin(slope * x + offset)  # noqa: E731
    tangent = ag.grad(lambda m: m.slope * m.offset)(line())  # slope 1, offset 2
    want = jax.jvp(plain, (2.0, 1.0, 0.5), (1.0, 2.0, 4.0))
    out, dout = ag.jvp(f, (line(), 0.5, jnp.sin), (tangent, 4.0, None))
    np.testing.assert_allclose((out["y"], dout["y"]), want, rtol=1e-6)
    assert out["how"] is jnp.sin
    assert (dout["n"], dout["how"], int(out["n"])) == (None, None, 3)
    out, push = ag.linearize(f, line(), 0.5, jnp.sin)
    np.testing.assert_allclose(push(tangent, 4.0, None)["y"], want[1], rtol=1e-6)
    out, pull = ag.vjp(f, line(), 0.5, jnp.sin)
    assert out["how"] is jnp.sin
    want_back = jax.vjp(plain, 2.0, 1.0, 0.5)[1](jnp.float32(3.0))
    grads, dx, none = pull({"y": jnp.float32(3.0), "n": None, "how": None})
    np.testing.assert_allclose((grads.slope, grads.offset, dx), want_back, rtol=1e-6)
    assert none is None
    assert grads.steps is None
    assert ag.vjp(lambda x: (x * 2, "aux"), 1.0, has_aux=True)[2] == "aux"


def test_under_jit_results_of_transformations_hold_no_tracers() -> None:
    """What `vjp` and `linearize` return can be used after the function was traced, inside and outside of jits."""

    @ag.jit
    def g(m: Any, x: Any) -> Any:
        out, pull = ag.vjp(lambda m, x: (m(x), m.steps), m, x)
        return pull((1.0, None))[0], out

    grads, out = g(line(), 2.0)
    assert (grads.slope, int(out[1])) == (2.0, 3)
    _, pull = ag.vjp(lambda m, x: (m(x), m.steps), line(), 2.0)
    kept = [c.cell_contents for c in pull.__closure__ if hasattr(c.cell_contents, "out")]
    assert len(kept) == 1
    assert not any(isinstance(x, Tracer) for x in kept[0].out.leaves)


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
@pytest.mark.parametrize("argnums", [0, (0, 1)], ids=str)
def test_jacobians(name: str, argnums: Any) -> None:
    """JAX's numbers, as a tree of the result's structure with trees of the argument's in it."""
    f = lambda t, x: {"y": jnp.sin(t["w"]) * x**2 + t["w"][::-1]}  # noqa: E731
    t, x = {"w": jnp.arange(3.0)}, jnp.array([1.0, 2.0, 3.0])
    want = getattr(jax, name)(f, argnums)(t, x)
    assert_trees(getattr(ag, name)(f, argnums)(t, x), want)
    with_more = lambda t, x: {**f(t, x), "n": 3, "name": t["name"]}  # noqa: E731
    got = getattr(ag, name)(with_more, argnums)({**t, "name": "text"}, x)
    assert (got["n"], got["name"]) == (None, None)
    inner = got["y"] if argnums == 0 else got["y"][0]
    reference = want["y"] if argnums == 0 else want["y"][0]
    if name == "hessian":
        inner, reference = (t["w"] if argnums == 0 else t["w"][0] for t in (inner, reference))
    np.testing.assert_allclose(inner["w"], reference["w"], rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.sampled_from(["f32", "bf16", "c64"]))
def test_agrees_with_jax_on_types(seed: int, dtype: str) -> None:
    """Dtype and weak type of a gradient are what `jax.grad` gives, for scalars and arrays."""
    x = {"f32": 1.5, "bf16": jnp.bfloat16(seed + 1), "c64": jnp.complex64(seed + 1j)}[dtype]
    f = lambda x: jnp.abs(x) ** 2 if dtype != "c64" else x**2  # noqa: E731
    options = {"holomorphic": True} if dtype == "c64" else {}
    got, want = ag.grad(f, **options)(x), jax.grad(f, **options)(x)
    assert jax.typeof(got) == jax.typeof(want)
    np.testing.assert_array_equal(got, want)


def test_custom_rules_on_methods_and_modules() -> None:
    """A rule sees values as they are; what it returns for a value that is no array is not looked at."""

    class Clipped(ag.Module):
        weight: Any

        @ag.custom_vjp
        def apply(self, x: Any, how: Any) -> Any:
            return how(self.weight * x), how

        def __call__(self, x: Any) -> Any:
            return self.apply(x, jnp.sin)[0]

    seen = []

    def fwd(self: Any, x: Any, how: Any) -> Any:
        seen.append(how)
        return (how(self.weight * x), how), (self, x, how)

    def bwd(kept: Any, cotangent: Any) -> Any:
        (model, x, how), (g, none) = kept, cotangent
        assert none is None
        assert how is jnp.sin
        grads = ag.grad(lambda m: m.weight * x * 7.0)(model)
        return jax.tree.map(lambda w: w * g, grads), None, how

    Clipped.apply.defvjp(fwd, bwd)
    grads = ag.grad(lambda m, x: m(x))(Clipped(jnp.array(2.0)), 3.0)
    assert grads.weight == 21.0
    assert seen == [jnp.sin]

    @ag.custom_jvp
    def scaled(m: Any, how: Any) -> Any:
        return {"y": how(m.slope), "how": how}

    @scaled.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        assert tangents[1] is None
        return scaled(*primals), {"y": 5.0 * tangents[0].slope, "how": None}

    assert ag.grad(lambda m: scaled(m, jnp.cos)["y"])(line()).slope == 5.0


def test_checkpoint_recomputes() -> None:
    """The gradient is the same and its program runs the function again; static values go through."""
    f = lambda m, x, how: how(m(how(x)))  # noqa: E731
    want = ag.grad(f)(line(), 0.5, jnp.sin)
    for g in (ag.checkpoint(f), ag.checkpoint(policy=jax.checkpoint_policies.nothing_saveable)(f)):
        assert_trees(ag.grad(g)(line(), 0.5, jnp.sin), want)
        text = str(jax.make_jaxpr(lambda m, x, g=g: ag.grad(g)(m, x, jnp.sin))(line(), 0.5))
        plain = str(jax.make_jaxpr(lambda m, x: ag.grad(f)(m, x, jnp.sin))(line(), 0.5))
        assert text.count(" sin ") > plain.count(" sin ")
    np.testing.assert_allclose(ag.checkpoint(lambda x, n: x**n, static_argnums=1)(2.0, 3), 8.0)
