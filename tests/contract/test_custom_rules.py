"""The user's own rules stay the user's: derivative rules, batching rules, solvers, checkpoints."""

import functools

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

import aerogel as ag

from ._programs import (
    LENGTH,
    STACKED,
    assert_equal_trees,
    assert_fires,
    assert_same,
    primitives,
    result_shapes,
    stacked_sum,
    start,
)


def odd_jvp():
    """A sine whose custom derivative is 100: whoever differentiates through it gives another number."""

    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    f.defjvp(lambda primals, tangents: (f(*primals), 100.0 * tangents[0]))
    return f


def odd_vjp():
    """A sine whose custom gradient is 100."""

    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (100.0 * g,))
    return f


RULES = {"custom_jvp": odd_jvp, "custom_vjp": odd_vjp}


@pytest.mark.parametrize("rule", RULES)
def test_custom_derivatives_are_kept(rule):
    """Derivatives come from the user's rule, with `optimize` inside or outside of `grad`, and below."""
    f, x = RULES[rule](), jnp.linspace(0.0, 1.0, 4)

    def g(x):
        return (2 * f(x)).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(ag.optimize(g)))(x), 200.0)
    np.testing.assert_array_equal(jax.jit(ag.optimize(jax.grad(g)))(x), 200.0)
    np.testing.assert_array_equal(jax.grad(lambda x: ag.optimize(f)(x).sum())(x), 100.0)
    assert_same(g, x)
    assert_same(jax.vmap(jax.grad(f)), x)


@pytest.mark.parametrize("rule", RULES)
def test_custom_derivatives_inside_a_rewritten_loop(rule):
    """The body of the loop that is rewritten calls the function with the rule."""
    f, x = RULES[rule](), start()

    def g(x):
        def body(c, _):
            return 0.5 * c, f(c)

        return lax.scan(body, x, None, length=LENGTH)[1].sum()

    assert_fires(g, x)
    want = jax.jit(jax.grad(g))(x)
    np.testing.assert_allclose(want, 200.0, rtol=1e-5)  # the sum of 100 / 2**k: the rule was used
    np.testing.assert_allclose(jax.jit(jax.grad(ag.optimize(g)))(x), want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(ag.optimize(jax.grad(g)))(x), want, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_a_rewritten_loop_inside_a_custom_rule(rule):
    """The function with the rule holds the loop: its derivative is still the rule's."""
    decorate = {"custom_jvp": jax.custom_jvp, "custom_vjp": jax.custom_vjp}[rule]
    f = decorate(lambda x: stacked_sum(x))
    if rule == "custom_jvp":
        f.defjvp(lambda primals, tangents: (f(*primals), 3.0 * tangents[0].sum()))
    else:
        f.defvjp(lambda x: (f(x), x), lambda x, g: (3.0 * g * jnp.ones_like(x),))
    x = start()
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), rtol=1e-5)
    np.testing.assert_array_equal(jax.jit(ag.optimize(jax.grad(f)))(x), 3.0)
    np.testing.assert_array_equal(jax.jit(jax.grad(ag.optimize(f)))(x), 3.0)


def test_nondiff_arguments():
    """`nondiff_argnums`: functions and numbers reach the rule as they are."""

    @functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
    def apply(act, x, scale):
        return act(x) * scale

    @apply.defjvp
    def apply_jvp(act, scale, primals, tangents):
        assert act is jnp.tanh
        assert scale == 3
        return apply(act, *primals, scale), 7.0 * tangents[0]

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def apply_back(act, x):
        return act(x)

    apply_back.defvjp(lambda act, x: (act(x), x), lambda act, x, g: (g * act(x) + 5.0,))

    def f(x):
        return apply(jnp.tanh, x, 3).sum() + apply_back(jnp.cos, x).sum()

    x = jnp.linspace(0.0, 1.0, 4)
    assert_same(f, x)
    assert_same(jax.grad(f), x)
    assert_equal_trees(jax.jit(jax.grad(ag.optimize(f)))(x), jax.jit(jax.grad(f))(x))


def test_symbolic_zeros():
    """A rule that asks for symbolic zeros sees the same zeros: which inputs are perturbed is not blurred."""

    def make(seen):
        @jax.custom_jvp
        def f(x, y):
            return x * y

        def rule(primals, tangents):
            seen.append(tuple(type(t) is SymbolicZero for t in tangents))
            x, y = primals
            total = sum(lax.full_like(x, 1.0) * t for t in tangents if type(t) is not SymbolicZero)
            return f(x, y), total

        f.defjvp(rule, symbolic_zeros=True)
        return f

    def use(optimize, order):
        seen = []
        f = make(seen)
        g = optimize(lambda x, y: f(x, y).sum())
        grad = jax.grad(g) if order == "outside" else jax.grad(lambda x: g(x, jnp.ones(3)))
        return np.asarray(jax.jit(grad)(*([jnp.ones(3)] * (2 if order == "outside" else 1)))), seen

    for order in ("outside", "constant"):
        got, seen = use(ag.optimize, order)
        want, expected = use(lambda f: f, order)
        np.testing.assert_array_equal(got, want)
        assert set(seen) == set(expected)


def test_custom_vjp_with_symbolic_zeros():
    """`custom_vjp(..., symbolic_zeros=True)` sees which inputs are perturbed and which cotangents are zero."""
    seen = []

    @jax.custom_vjp
    def f(x, y):
        return x * y, x + y

    def forward(x, y):
        seen.append((x.perturbed, y.perturbed))
        return f(x.value, y.value), (x.value, y.value)

    def backward(res, cotangents):
        seen.append(tuple(type(c) is SymbolicZero for c in cotangents))
        x, y = res
        return cotangents[0] * y * 10, cotangents[0] * x

    f.defvjp(forward, backward, symbolic_zeros=True)

    def loss(x, y):
        return f(x, y)[0].sum()

    x, y = jnp.ones(3), jnp.full(3, 2.0)
    want = jax.jit(jax.grad(loss))(x, y)
    expected = list(seen)
    for g in (ag.optimize(jax.grad(loss)), jax.grad(ag.optimize(loss))):
        seen.clear()
        assert_equal_trees(jax.jit(g)(x, y), want)
        assert seen == expected


def test_custom_vmap():
    """The user's batching rule is the one that `vmap` uses, inside and outside."""

    @custom_vmap
    def f(x):
        return jnp.sin(x)

    @f.def_vmap
    def rule(axis_size, in_batched, x):
        return x * axis_size, in_batched[0]

    x = jnp.arange(4.0)
    np.testing.assert_array_equal(jax.jit(jax.vmap(ag.optimize(f)))(x), 4 * x)
    np.testing.assert_array_equal(jax.jit(ag.optimize(jax.vmap(f)))(x), 4 * x)
    assert_same(f, x)
    assert_same(lambda x: jax.vmap(f)(x) + 1, x)


def test_custom_linear_solve():
    """Solves, their gradients (which use the transposed solve) and their batching."""
    matrix = jnp.array([[4.0, 1.0], [0.5, 3.0]])

    def solve(b):
        def by(matrix):
            return lambda _, b: jnp.linalg.solve(matrix, b)

        return lax.custom_linear_solve(lambda x: matrix @ x, b, by(matrix), by(matrix.T))

    b = jnp.array([1.0, 2.0])
    assert_same(solve, b)
    assert_same(jax.grad(lambda b: solve(b).sum()), b)
    assert_same(jax.vmap(solve), jnp.stack([b, 2 * b]))
    assert_equal_trees(jax.jit(jax.jacrev(ag.optimize(solve)))(b), jax.jit(jax.jacrev(solve))(b))
    assert_same(lambda a, b: jax.scipy.sparse.linalg.cg(a, b)[0], matrix @ matrix.T, b)


def test_custom_root():
    """Implicit differentiation keeps the user's solvers."""

    def root(a):
        def newton(f, x):
            return lax.fori_loop(0, 20, lambda _, x: x - f(x) / jax.grad(f)(x), x)

        return lax.custom_root(lambda x: x**3 - a, jnp.ones(()), newton, lambda g, y: y / g(1.0))

    assert_same(root, jnp.float32(8.0))
    assert_same(jax.grad(root), jnp.float32(8.0))
    assert_equal_trees(jax.jit(jax.grad(ag.optimize(root)))(8.0), jax.jit(jax.grad(root))(8.0))


def test_custom_gradient():
    """`custom_gradient`, which builds on `custom_vjp`, keeps its gradient."""

    @jax.custom_gradient
    def f(x):
        return x * x, lambda g: 100.0 * g

    assert_same(jax.grad(lambda x: f(x).sum()), jnp.ones(3))
    np.testing.assert_array_equal(jax.grad(lambda x: ag.optimize(f)(x).sum())(jnp.ones(3)), 100.0)


POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("hidden"),
    "other names": jax.checkpoint_policies.save_only_these_names("nowhere"),
    "offload": jax.checkpoint_policies.save_any_names_but_these("hidden"),
}


def network(w, x):
    """Two layers, of which one value is named."""
    hidden = jax.ad_checkpoint.checkpoint_name(jnp.sin(x @ w), "hidden")
    return jnp.sum(jnp.sin(jnp.cos(hidden) @ w))


def residuals(f, *args, capsys) -> list[str]:
    """The types that the backward pass of `f` keeps, as JAX prints them, without what it says of their origin."""
    jax.ad_checkpoint.print_saved_residuals(f, *args)
    lines = capsys.readouterr().out.strip().splitlines()
    return sorted(line.split()[0] for line in lines if "from the argument" not in line)


@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_policies_keep_their_residuals(name, capsys):
    """`checkpoint` with a policy stores through `optimize` exactly what it stores without."""
    f = jax.checkpoint(network, policy=POLICIES[name])
    w, x = jnp.linspace(-1.0, 1.0, 16).reshape(4, 4), jnp.ones((3, 4))
    want = residuals(f, w, x, capsys=capsys)
    assert residuals(ag.optimize(f), w, x, capsys=capsys) == want
    assert residuals(jax.checkpoint(ag.optimize(network), policy=POLICIES[name]), w, x, capsys=capsys) == want
    assert_same(jax.grad(f), w, x)


def test_checkpoint_is_kept_under_an_optimised_gradient():
    """The recomputation that the user asked for is not merged away with the forward pass."""
    w, x = jnp.linspace(-1.0, 1.0, 16).reshape(4, 4), jnp.ones((3, 4))
    f = jax.value_and_grad(jax.checkpoint(network))  # with the value, so that none of the forward pass is dead
    natural, optimised = (primitives(jax.make_jaxpr(g)(w, x)) for g in (f, ag.optimize(f)))
    assert natural["remat2"] + natural["checkpoint"] == 1
    assert optimised["remat2"] + optimised["checkpoint"] == 1
    assert optimised["dot_general"] == natural["dot_general"]


def test_checkpointed_body_of_a_rewritten_loop():
    """The gradient of a loop with a checkpointed body stores carries only: fusion adds no residual."""

    def f(x):
        @jax.checkpoint
        def body(c, _):
            c = jnp.sin(jnp.exp(jnp.cos(c)))
            return c, c

        return lax.scan(body, x, None, length=LENGTH)[1].sum()

    x = start()
    assert_fires(f, x)
    natural, optimised = (jax.make_jaxpr(g)(x) for g in (jax.grad(f), jax.grad(ag.optimize(f))))
    assert 0 < result_shapes(optimised)[STACKED] <= result_shapes(natural)[STACKED]
    want = jax.jit(jax.grad(f))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(ag.optimize(f)))(x), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(jax.jit(ag.optimize(jax.grad(f)))(x), want, rtol=1e-4, atol=1e-6)


def test_checkpoint_name_survives():
    """A name put on a value stays on it in the optimised program, outside of any checkpoint."""
    w, x = jnp.ones((4, 4)), jnp.ones((3, 4))
    assert primitives(jax.make_jaxpr(network)(w, x))["name"] == 1
    assert primitives(jax.make_jaxpr(ag.optimize(network))(w, x))["name"] == 1
