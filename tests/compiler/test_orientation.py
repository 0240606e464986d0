"""Products are made in the order in which they are wanted: transposes go, numbers stay, nothing is copied instead."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import Jaxpr
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.normalize import normalize
from aerogel.compiler.orders.orders import carry, moved_bytes, natural, pull
from aerogel.compiler.passes.orientation import AGAINST_ROWS
from aerogel.compiler.program import inner_jaxprs


def values(*shape, dtype="float32", seed=0):
    """Normal numbers, or small integers; the same for the same shape and seed."""
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind in "iu":
        return jnp.asarray(rng.integers(-4, 5, shape), dtype)
    return jnp.asarray(rng.normal(size=shape), dtype)


def natural_program(f, *args) -> Jaxpr:
    """The program that the passes see, before any of them."""
    return normalize(jax.make_jaxpr(f)(*args))[0].jaxpr


# Short calls run in blocks, which are put together by transposes.
PASSES = tuple(one for one in DEFAULT_PASSES if one.name != "short-calls")


def optimised_program(f, *args) -> Jaxpr:
    """The program that runs."""
    return jax.make_jaxpr(ag.optimize(f, passes=PASSES))(*args).jaxpr


def equations(jaxpr: Jaxpr, name: str) -> list[Any]:
    """All equations of a primitive, in nested programs too."""
    here = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == name]
    return here + [e for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn) for e in equations(inner, name)]


def transposes(jaxpr: Jaxpr) -> list[Any]:
    """Transposes that copy: those that move more than unit dimensions."""
    return [eqn for eqn in equations(jaxpr, "transpose") if bytes_of(eqn)]


def bytes_of(eqn) -> int:
    """Bytes that a transpose copies."""
    order = tuple(eqn.params["permutation"])
    return moved_bytes(eqn.invars[0].aval, natural(len(order)), order)


def copied(jaxpr: Jaxpr) -> int:
    """Bytes that all transposes copy."""
    return sum(bytes_of(eqn) for eqn in transposes(jaxpr))


def assert_same(f, *args, tolerance=2e-5):
    """Equal values and types."""
    wanted, got = jax.jit(f)(*args), jax.jit(ag.optimize(f))(*args)
    assert jax.tree.structure(wanted) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


def loses_all(f, *args, tolerance=2e-5):
    """The natural program transposes, the optimised one does not, and both give the same."""
    before, after = natural_program(f, *args), optimised_program(f, *args)
    assert transposes(before), "nothing to absorb: the claim would be empty"
    assert not transposes(after), f"left: {after}"
    assert len(equations(after, "dot_general")) == len(equations(before, "dot_general"))
    assert_same(f, *args, tolerance=tolerance)


def vv(f, inner, outer, inner_out=0, outer_out=0):
    """`f` mapped twice."""
    return jax.vmap(jax.vmap(f, inner, inner_out), outer, outer_out)


W, X = values(5, 7), values(3, 4, 7)


@pytest.mark.parametrize("stored", ["out, in", "in, out"])
@pytest.mark.parametrize("outer_axis", [0, 1])
@pytest.mark.parametrize("first", ["weight", "vector"])
def test_issue_19327_needs_no_transpose(first, outer_axis, stored):
    """Each of the eight programs of JAX issue 19327 is one product and nothing else."""
    w, flip = (W, lambda w: w) if stored == "out, in" else (W.T, lambda w: w.T)
    f = (lambda w, x: flip(w) @ x) if first == "weight" else (lambda w, x: x @ flip(w).T)
    mapped = vv(f, (None, 0), (None, outer_axis), 0, outer_axis)
    after = optimised_program(mapped, w, X)
    assert [eqn.primitive.name for eqn in after.eqns] == ["dot_general"]
    assert_same(mapped, w, X)


def test_two_transposes_after_a_product_are_absorbed():
    """Chains are followed: dot, transpose, transpose is one product."""
    loses_all(lambda w, x: vv(lambda w, x: w @ x, (None, 0), (None, 1), 0, 1)(w, x), W, X)


def test_each_user_of_a_chain_gets_its_own_transpose():
    """A product that is read in two orders is transposed once, not twice in a row."""

    def f(w, x):
        y = jnp.transpose(w @ x, (1, 0))
        return y, jnp.transpose(y[None], (2, 0, 1))[:, 0]

    args = values(5, 7), values(7, 4)
    assert len(transposes(natural_program(f, *args))) == 2
    assert len(transposes(optimised_program(f, *args))) == 1
    assert_same(f, *args)


BEFORE = {
    "left": lambda a, b: jnp.swapaxes(a, 1, 2) @ b,
    "both": lambda a, b: jnp.swapaxes(a, 1, 2) @ jnp.transpose(jnp.transpose(b, (1, 0, 2)), (1, 0, 2)),
    "batch last": lambda a, b: jnp.einsum("kma,kna->amn", jnp.transpose(a, (1, 2, 0)), jnp.transpose(b, (1, 2, 0))),
    "free dimensions": lambda a, b: jnp.einsum("abc,dbc->ad", jnp.transpose(a, (2, 0, 1)), jnp.transpose(b, (2, 0, 1))),
}


@pytest.mark.parametrize("f", BEFORE.values(), ids=BEFORE)
def test_a_transpose_before_a_product_is_absorbed(f):
    """Contracted and batch dimensions are renumbered; the operand is read as it lies."""
    loses_all(f, values(3, 7, 5), values(3, 7, 4))


ENTRYWISE = {
    "tanh": jnp.tanh,
    "convert": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "scale": lambda x: x * 0.25,
    "computed scalar": lambda x: x * jnp.sin(x.sum()),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "select": lambda x: jnp.where(x > 0, x, -x),
    "unit dimension": lambda x: jnp.squeeze(jnp.tanh(jnp.expand_dims(x, 1)), 1),
    "reshape": lambda x: jnp.tanh(x.reshape(x.shape[0], 1, -1)).reshape(x.shape),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "slices": lambda x: jnp.concatenate([x[..., 1:], -x[..., :1]], -1),
    "cumsum": lambda x: jnp.cumsum(x, -1),
}


@pytest.mark.parametrize("between", ENTRYWISE.values(), ids=ENTRYWISE)
def test_a_transpose_moves_through_what_works_entry_by_entry(between):
    """`vmap(w @ x)`, something entrywise on the features, and the result: no transpose on either side of it."""
    loses_all(lambda w, x: between(jnp.moveaxis(w @ x.T, 0, -1)), values(20, 7), values(6, 7), tolerance=1e-2)


@pytest.mark.parametrize("between", ENTRYWISE.values(), ids=ENTRYWISE)
def test_what_works_entry_by_entry_is_done_in_another_order(between):
    """Between a transpose and its inverse an equation is done on the other order, with the same numbers."""
    x = values(20, 24)
    loses_all(lambda x: between(x.T).T, x, tolerance=1e-2)


def rotated(q, v):
    """Vectors rotated by quaternions."""
    w, u = q[:, :1], q[:, 1:]
    return v + 2 * jnp.cross(u, jnp.cross(u, v) + w * v)


JOINED = {
    "cross product": lambda q, v: jnp.cross(q[:, 1:], v),
    "cross product and more": lambda q, v: v + 2 * jnp.cross(q[:, 1:], v),
    "joined rows": lambda q, v: jnp.concatenate([(v[:, k] * q[:, k + 1])[None] for k in range(3)]).T,
    "rotation": rotated,
}


@pytest.mark.parametrize("f", JOINED.values(), ids=JOINED)
def test_entries_are_not_joined_to_save_a_transpose(f):
    """XLA joins rows much faster than entries of rows, and takes a transpose of them along."""
    q, v = values(2000, 4), values(2000, 3)
    got = optimised_program(f, q, v)
    assert not [eqn for eqn in equations(got, "concatenate") if 1 in {x.aval.shape[-1] for x in eqn.invars}], got
    np.testing.assert_allclose(ag.optimize(f)(q, v), f(q, v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.silu, jax.nn.relu6], ids=["relu", "silu", "relu6"])
def test_functions_with_a_rule_keep_it_in_another_order(function):
    """First and second derivatives, taken from outside, of a function that was given transposed values."""

    def f(x):
        return jax.vmap(function, 1, 1)(x.T * 2).T + function(x.T).T

    x = values(6, 7)
    assert transposes(natural_program(f, x))
    assert not transposes(optimised_program(f, x))
    loss = lambda g: lambda x: jnp.sum(g(x) ** 2)  # noqa: E731
    for derivative in (jax.grad, lambda h: jax.grad(lambda x: jnp.sum(jax.grad(h)(x) ** 2))):
        wanted, got = derivative(loss(f))(x), derivative(loss(ag.optimize(f)))(x)
        np.testing.assert_allclose(wanted, got, rtol=1e-4, atol=1e-4)


def test_a_bias_is_broadcast_in_the_order_of_the_product():
    """What is broadcast costs nothing to make in another order."""
    loses_all(lambda w, b, x: jax.vmap(lambda x: jnp.tanh(w @ x + b) * 2)(x), W, values(5), values(6, 7))


def layers(ws, x):
    """A network for one example."""
    for w in ws:
        x = jnp.tanh(w @ x)
    return x


def by_hand(ws, xs):
    """The same for a batch."""
    for w in ws:
        xs = jnp.tanh(xs @ w.T)
    return xs


WS = [values(8, 8, seed=k) for k in range(4)]


def dimension_numbers(f, *args):
    """Those of the products that run."""
    return [eqn.params["dimension_numbers"] for eqn in equations(optimised_program(f, *args), "dot_general")]


def test_a_network_under_vmap_is_the_one_written_for_batches():
    """Per-example `w @ x` under vmap becomes `xs @ w.T`: the same products in the same form, no transpose."""
    f = jax.vmap(layers, (None, 0))
    xs = values(64, 8)
    loses_all(f, WS, xs)
    hand = natural_program(by_hand, WS, xs)
    assert not equations(optimised_program(f, WS, xs), "transpose")
    assert dimension_numbers(f, WS, xs) == [((((1,), (1,))), ((), ()))] * 4
    assert len(equations(hand, "dot_general")) == 4


def test_the_gradient_of_a_network_under_vmap_transposes_nothing():
    """The transposed products of the backward pass take part: activations and their gradients lie alike."""
    f = jax.value_and_grad(lambda ws, xs: jnp.sum(jax.vmap(layers, (None, 0))(ws, xs) ** 2))
    loses_all(f, [values(72, 72, seed=k) for k in range(4)], values(80, 72))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only this backend's library takes longer")
@pytest.mark.parametrize(("size", "stays"), [(16, True), (4, False), (160, False)])
def test_small_products_are_not_read_against_their_rows(size, stays):
    """A transpose of so little costs nothing, and the library 1 us for a left operand whose terms come first."""

    def f(x, t, u):
        return (jnp.tanh(jnp.sin(x).T @ t) @ u).T

    args = values(size, size + 8), values(size, 2 * size), values(2 * size, size)
    assert bool(transposes(optimised_program(f, *args))) == stays
    assert_same(f, *args)


LEVELS: dict[str, Callable[..., Any]] = {
    "scan": lambda w, xs: lax.scan(lambda c, x: (c, vv(lambda w, x: w @ x, (None, 0), (None, 0))(w, x)), 0, xs[None])[
        1
    ],
    "cond": lambda w, xs: lax.cond(
        w[0, 0] > 0, lambda: vv(lambda w, x: w @ x, (None, 0), (None, 0))(w, xs), lambda: jnp.zeros((3, 4, 5))
    ),
    "while": lambda w, xs: lax.fori_loop(
        0, 2, lambda i, c: c + vv(lambda w, x: w @ x, (None, 0), (None, 0))(w, xs), jnp.zeros((3, 4, 5))
    ),
    "checkpoint": lambda w, xs: jax.checkpoint(vv(lambda w, x: w @ x, (None, 0), (None, 0)))(w, xs),
}


@pytest.mark.parametrize("f", LEVELS.values(), ids=LEVELS)
def test_bodies_are_rewritten(f):
    """Loops, branches and checkpointed functions are levels of their own."""
    loses_all(f, W, X)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int32", "complex64"])
def test_other_types(dtype):
    """Operands of every type that products take."""
    make = (lambda *s: values(*s)) if dtype == "complex64" else (lambda *s: values(*s, dtype=dtype))
    w, x = make(5, 7).astype(dtype), make(3, 4, 7).astype(dtype)
    f = vv(lambda w, x: w @ x, (None, 0), (None, 0))
    assert transposes(natural_program(f, w, x))
    assert not transposes(optimised_program(f, w, x))
    wanted, got = jax.jit(f)(w, x), jax.jit(ag.optimize(f))(w, x)
    assert wanted.dtype == got.dtype
    np.testing.assert_allclose(np.asarray(wanted, "complex64"), np.asarray(got, "complex64"), rtol=2e-2, atol=2e-2)


def test_operands_keep_their_own_precision_and_the_result_its_type():
    """When operands change places their precisions do; a mixed product keeps its `preferred_element_type`."""

    def f(w, x):
        y = lax.dot_general(
            w, x, (((1,), (1,)), ((), ())),
            precision=(lax.Precision.HIGHEST, lax.Precision.DEFAULT), preferred_element_type=jnp.float32,
        )  # fmt: skip
        return y.T

    w, x = values(5, 7).astype(jnp.bfloat16), values(6, 7)
    (eqn,) = optimised_program(f, w, x).eqns
    assert eqn.invars[0].aval.dtype == jnp.float32, "the operands have changed places"
    assert eqn.params["precision"] == (lax.Precision.DEFAULT, lax.Precision.HIGHEST)
    assert eqn.params["preferred_element_type"] == jnp.float32
    assert_same(f, w, x)


@pytest.mark.parametrize(("dtype", "stays"), [("bfloat16", True), ("float16", False), ("int8", False)])
def test_a_product_of_bfloat16_in_a_longer_type_keeps_its_form(dtype, stays):
    """XLA's CPU backend ends with "Unsupported element type" in the form that would need no transpose."""
    kind = jnp.int32 if dtype == "int8" else jnp.float32

    def product(x, w):
        return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=kind).T

    f = jax.vmap(product, in_axes=(0, None), out_axes=2)
    x, w = values(9, 24, 40).astype(dtype), values(40, 24).astype(dtype)
    (eqn,) = equations(optimised_program(f, x, w), "dot_general")
    assert ([v.aval.shape for v in eqn.invars] == [x.shape, w.shape]) == stays
    assert_same(f, x, w)


def test_transposes_cancel_without_a_product():
    """A transpose undone behind entrywise equations goes with its inverse."""
    loses_all(lambda x: jnp.tanh(x.transpose(2, 0, 1) * 2).transpose(1, 2, 0), values(3, 4, 5))


def test_a_transpose_of_a_broadcast_is_a_broadcast():
    """What repeats a small value needs no transposed copy of the large one."""
    loses_all(lambda x: jnp.broadcast_to(x, (3, 4, 5)).transpose(2, 0, 1), values(5))


def test_what_is_wanted_as_it_is_stays_and_says_why():
    """A batch dimension between the free ones is no product's order: the transpose stays, refused with a reason."""

    def f(a, b):
        return jax.vmap(lambda a, b: a @ b, (0, 0), 1)(a, b)

    args = values(3, 5, 7), values(3, 7, 4)
    report = ag.explain(f)(*args)
    assert [d.rule for d in report.refused] == ["orientation"]
    assert "copies as much" in report.refused[0].reason
    before, after = natural_program(f, *args), optimised_program(f, *args)
    assert len(transposes(before)) == len(transposes(after)) == 1


def test_a_program_that_is_right_stays_the_same_object():
    """Nothing to gain: no decision, no new equation."""
    args = values(64, 8), [w.T for w in WS]

    def f(x, ws):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    report = ag.explain(f)(*args)
    assert not report.fired
    assert str(optimised_program(f, *args)) == str(jax.make_jaxpr(f)(*args).jaxpr)


def test_a_report_names_the_line_and_the_bytes():
    """The decision stands at the user's line, with what the transpose wrote."""
    report = ag.explain(vv(lambda w, x: w @ x, (None, 0), (None, 0)))(W, X)
    (decision,) = report.fired
    assert decision.peak_bytes_saved == 3 * 4 * 5 * 4
    assert "test_orientation.py" in decision.where


SHAPES = [
    (lambda x: x.reshape(6, 20), (2, 3, 4, 5)),
    (lambda x: x.reshape(2, 12, 1, 5), (2, 3, 4, 5)),
    (lambda x: x.reshape(6, 2, 10), (2, 3, 4, 5)),
    (lambda x: lax.transpose(x, (2, 0, 3, 1)), (2, 3, 4, 5)),
    (lambda x: lax.squeeze(x, (1,)), (2, 1, 4, 5)),
    (lambda x: x.sum((0, 2)), (2, 3, 4, 5)),
    (lambda x: x.argmax(1), (2, 3, 4, 5)),
]


@pytest.mark.parametrize(("f", "shape"), SHAPES)
def test_a_carried_order_is_that_of_the_result(f, shape):
    """For every order of the operand: the equation done there gives the result in the order that `carry` says."""
    x = values(*shape)
    eqn = next(e for e in jax.make_jaxpr(f)(x).jaxpr.eqns if e.primitive.name not in ("convert_element_type",))
    wanted, carried_orders = np.asarray(f(x)), 0
    for order in itertools.permutations(range(x.ndim)):
        found = carry(eqn, order)
        if found is None:
            continue
        carried_orders += 1
        if eqn.primitive.name == "transpose":
            got = jnp.transpose(x, order)
        else:
            got = eqn.primitive.bind(jnp.transpose(x, order), **found.params)
        np.testing.assert_allclose(got, wanted.transpose(found.order), rtol=1e-6)
        back = pull(eqn, found.order)
        assert back is not None
        again = carry(eqn, back)
        assert again is not None
        assert again.order == found.order
    assert carried_orders > 1


class Nest:
    """A random composition of vmaps of products, with entrywise equations, transposes and reshapes between."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.size = {"a": 2, "b": 3, "c": 4, "i": 5, "j": 6}
        if self.rng.random() < 0.3:
            self.size[self.rng.choice("abcij")] = self.rng.choice([0, 1])

    def program(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A function of two arrays and the arrays."""
        rng = self.rng
        kind = rng.choice(["dot", "matvec", "vecmat", "matmul", "einsum"])
        left, right, f = {
            "dot": ("i", "i", jnp.dot),
            "matvec": ("ji", "i", jnp.matmul),
            "vecmat": ("i", "ij", jnp.matmul),
            "matmul": ("ji", "ic", jnp.matmul),
            "einsum": ("ij", "ci", lambda x, y: jnp.einsum("ij,ci->jc", x, y)),
        }[kind]
        shapes = [[self.size[d] for d in dims] for dims in (left, right)]
        rank = {"dot": 0, "matvec": 1, "vecmat": 1, "matmul": 2, "einsum": 2}[kind]
        for letter in rng.sample("abc", rng.randrange(1, 4)):
            axes = [rng.randrange(len(s) + 1) if rng.random() < 0.7 else None for s in shapes]
            if axes == [None, None]:
                axes[rng.randrange(2)] = 0
            f = jax.vmap(self._after(f, rank), tuple(axes), rng.randrange(rank + 1))
            rank += 1
            for shape, axis in zip(shapes, axes, strict=True):
                if axis is not None:
                    shape.insert(axis, self.size[letter])
        f = self._after(f, rank)
        seed = rng.randrange(1000)
        return f, (0.3 * values(*shapes[0], seed=seed), 0.3 * values(*shapes[1], seed=seed + 1))

    def _after(self, f, rank):
        """`f`, and something that leaves the rank of its result."""
        order = list(range(rank))
        self.rng.shuffle(order)
        axis = self.rng.randrange(rank) if rank else 0
        choices = {
            "nothing": lambda y: y,
            "tanh": jnp.tanh,
            "scale": lambda y: y * 0.5,
            "turn": lambda y: jnp.transpose(y, order),
            "turn, tanh": lambda y: jnp.tanh(jnp.transpose(y, order)),
            "unit": lambda y: jnp.squeeze(jnp.transpose(y[None], [r + 1 for r in order] + [0]), -1),
            "flat": lambda y: jnp.transpose(jnp.sin(y.reshape(-1)).reshape(y.shape), order),
            "centre": lambda y: y - y.mean(axis, keepdims=True) if rank else y,
            "gram": lambda y: jnp.einsum("...ij,...kj->...ik", jnp.tanh(y), jnp.cos(y)) / 8 if rank > 1 else y,
            # no maximum: vmap repeats rows, and which of two equal ones is larger is a matter of rounding
            "softmax": lambda y: jax.nn.softmax(jnp.transpose(y, order), axis) if rank else y,
            "reverse": lambda y: jnp.transpose(jnp.flip(y, axis), order) if rank else y,
        }
        chosen = choices[self.rng.choice(list(choices))]
        return lambda x, y: chosen(f(x, y))


@pytest.mark.parametrize("seed", range(40))
def test_random_nests_keep_their_numbers_and_never_copy_more(seed):
    """Any nest of vmaps: equal results and gradients, no type changed, no more bytes transposed than before."""
    f, args = Nest(seed).program()
    gradient = jax.value_and_grad(lambda *xs: jnp.sum(jnp.sin(f(*xs))), (0, 1))
    for g in (f, gradient):
        # a program in which nothing fired is the user's own, not its normal form
        assert copied(optimised_program(g, *args)) <= copied(jax.make_jaxpr(g)(*args).jaxpr)
        assert_same(g, *args, tolerance=1e-4)


@pytest.mark.parametrize(("columns", "left"), [(4, 1), (256, 0)])
def test_a_thin_batch_is_not_read_against_its_rows(columns, left):
    """An ensemble's last layer of few columns takes longer without the transpose before it than the transpose takes."""

    def ensemble(w, b, v, x):
        return jax.vmap(lambda w, b, v: jnp.tanh(x @ w + b) @ v)(w, b, v)

    args = values(5, 8, 64), values(5, 64), values(5, 64, columns), values(256, 8)
    assert len(transposes(natural_program(ensemble, *args))) == 1
    assert len(transposes(optimised_program(ensemble, *args))) == left
    assert_same(ensemble, *args)
    reasons = [d.reason for d in ag.explain(ensemble)(*args).refused if d.rule == "orientation"]
    assert [AGAINST_ROWS] * left == reasons


def weighted_squares(x, r):
    """A regression's normal equations under each of a few weightings."""
    return jax.vmap(lambda w: (x * w[:, None]).T @ x, 1)(r)


@pytest.mark.parametrize(("columns", "stays"), [(5, 1), (96, 0)])
def test_a_thin_product_is_not_read_against_its_rows(columns, stays):
    """A mixture of regressions took 1.13 of plain JAX's time: long sums of few columns, and the left operand turned."""
    args = values(500, columns), values(500, 3)
    assert bool(transposes(optimised_program(weighted_squares, *args))) == stays
    assert_same(weighted_squares, *args, tolerance=1e-4)


@pytest.mark.parametrize(("heads", "large"), [(4, 0), (128, 1)])
def test_of_a_thin_batch_the_large_operand_is_not_packed(heads, large):
    """Scores of relative positions: with few heads the large operand, packed for each, would cost more than a copy."""

    def scores(x, r):
        return jnp.einsum("hqd,qkd->hqk", x, r)

    args = values(heads, 128, 64), values(128, 130, 64)
    (product,) = (e for e in optimised_program(scores, *args).eqns if e.primitive.name == "dot_general")
    assert [130 in x.aval.shape for x in product.invars].index(True) == large
    assert_same(scores, *args)


def quadratic_form(a, p):
    """`a p a^T` for many matrices: the covariance that a linear model predicts."""
    return a @ p @ a.T


@pytest.mark.parametrize("size", [3, 8])
def test_rows_are_copied_rather_than_entries(size):
    """What XLA copies for a left operand is turned within its rows: whole rows are moved in a third of the time."""
    (product, _) = equations(
        optimised_program(quadratic_form, values(size, size), values(512, size, size)), "dot_general"
    )
    assert product.invars[1].aval.shape == (512, size, size)
    assert_same(quadratic_form, values(size, size), values(512, size, size))


def test_few_entries_are_read_through_a_transpose():
    """Both sides of a contrastive loss walk over one matrix: what reads a diagonal of one asks for no copy of it."""

    def contrastive(a, b):
        logits = a @ b.T
        sides = (jax.nn.log_softmax(each) for each in (logits, logits.T))
        return -sum(jnp.diag(side).mean() for side in sides)

    args = values(256, 32), values(256, 32, seed=1)
    program = optimised_program(contrastive, *args)
    (turned,) = transposes(program)
    assert [e.primitive.name for e in program.eqns if turned.outvars[0] in e.invars] == ["gather"]
    assert_same(contrastive, *args, tolerance=1e-5)


@pytest.mark.parametrize("entries", [3, 5, 8, 12])
@pytest.mark.parametrize("reduce", [jax.nn.logsumexp, jnp.argmax, lambda x, axis: jnp.sqrt((x**2).sum(axis))])
def test_no_product_turns_to_have_its_short_rows_reduced_as_columns(reduce, entries):
    """Short rows are reduced entry by entry (`small-axes`) or as they are: a product of 5 columns took 2.9 times."""
    x, w = values(5000, 16), values(16, entries)
    products = equations(optimised_program(lambda x, w: reduce(x @ w, axis=-1), x, w), "dot_general")
    assert products
    assert all(e.outvars[0].aval.shape[-1] == entries for e in products)


def test_pairs_stay_before_their_short_axis_beside_a_product():
    """A product elsewhere turns no differences of points: entry by entry their gradient takes a fifth of the time."""

    def energy(x, k):
        distance = jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-3)
        return (k * (distance - 1) ** 2).sum() + ((x @ x.T) ** 2).sum()

    args = values(100, 3), values(100, 100)
    assert any(v.aval.ndim == 3 for e in natural_program(jax.grad(energy), *args).eqns for v in e.outvars)
    after = optimised_program(jax.grad(energy), *args)
    assert not any(v.aval.size > 100 * 100 for e in after.eqns for v in e.outvars)
    assert_same(jax.grad(energy), *args, tolerance=1e-5)


@pytest.mark.parametrize("f", [lambda w, x: w.T @ x.T, lambda w, x: x.T.T @ w])
def test_matrices_are_read_through_their_transposes(f):
    """XLA folds them into the product in any case; without them, rules see which operand it reads against its rows."""
    program = optimised_program(f, values(900, 5), values(4_000, 900))
    products = [eqn for eqn in program.eqns if eqn.primitive.name == "dot_general"]
    assert [set(x.aval.shape) for eqn in products for x in eqn.invars] == [{4_000, 900}, {900, 5}]


@pytest.mark.parametrize("rows", [32, 64])
def test_a_network_of_few_rows_keeps_them_first(rows):
    """The gradient's transposes undo each other: they are no reason to have all features before the rows."""

    def loss(weights, x):
        for w in weights[:-1]:
            x = jnp.maximum(x @ w.T, 0.0)
        return jax.nn.logsumexp(x @ weights[-1].T, -1).sum()

    weights = [values(256, 784), values(256, 256), values(10, 256)]
    program = optimised_program(jax.grad(loss), weights, values(rows, 784))
    largest = [eqn.outvars[0].aval.shape for eqn in program.eqns if eqn.primitive.name in ("max", "gt", "select_n")]
    assert (rows, 256) in largest
    assert (256, rows) not in largest


@pytest.mark.parametrize("cumulate", [jnp.cumprod, jnp.cumsum, lambda x, axis: jax.lax.cummax(x, axis)])
def test_no_product_turns_cumulative_sums_along_rows(cumulate):
    """Layers that are composited from front to back: sums of many pixels beside each other are vector code."""

    def composite(place, grid, color):
        opacity = jnp.exp(-((grid - place[:, None, None]) ** 2))
        light = cumulate(1 - opacity, axis=0)
        return jnp.einsum("nhw,nc->hwc", opacity * light, color)

    args = values(40), values(24, 16), values(40, 3)
    program = jax.make_jaxpr(ag.optimize(composite, rules=()))(*args)
    sums = [eqn for name in ("cumprod", "cumsum", "cummax") for eqn in equations(program.jaxpr, name)]
    assert [(eqn.invars[0].aval.shape, eqn.params["axis"]) for eqn in sums] == [((40, 24, 16), 0)]
    assert_same(composite, *args, tolerance=1e-4)


def attention_in_windows(q, k, v):
    """Queries of each window look at the keys of their own and the window before."""

    def with_last(x):
        return jnp.concatenate([jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1], x], 2)

    keys, values = with_last(k), with_last(v)
    scores = jnp.einsum("bnqd,bnkd->bnqk", q, keys)
    return (jnp.einsum("bnqk,bnkd->bnqd", jax.nn.softmax(scores, -1), values) ** 2).mean()


@pytest.mark.parametrize("width", [12, 16])
def test_short_rows_are_not_made_columns_to_save_a_transpose(width):
    """Sums along rows stay sums along rows, where those of a turned product would be of few entries each."""
    f = jax.grad(attention_in_windows, argnums=(0, 1, 2))
    args = [values(8, 8, width, 20, seed=k) for k in range(3)]
    sums = [eqn for name in ("reduce_max", "reduce_sum") for eqn in equations(optimised_program(f, *args), name)]
    along = [eqn for eqn in sums if eqn.invars[0].aval.shape[-2:] in ((width, 2 * width), (2 * width, width))]
    assert len(along) >= 3
    assert {(eqn.params["axes"], eqn.invars[0].aval.shape[-1]) for eqn in along} == {((3,), 2 * width)}
    assert_same(f, *args, tolerance=1e-5)


def descent(x, y):
    """A few steps of least squares."""

    def step(w, _):
        off = x @ w - y
        return w - 0.01 * (x.T @ off), None

    return jax.lax.scan(step, jnp.zeros((x.shape[1], *y.shape[1:]), x.dtype), None, length=6)[0]


@pytest.mark.parametrize(
    ("dtype", "columns", "targets", "stays"),
    [
        ("bfloat16", 10, (), True),
        ("float16", 10, (), True),
        ("bfloat16", 128, (4,), True),
        ("bfloat16", 128, (), False),
        ("float32", 10, (), False),
        ("float32", 128, (4,), False),
    ],
)
def test_a_constant_of_short_floats_is_turned_before_the_loop(dtype, columns, targets, stays):
    """XLA converts it there in any case: only of long rows and a vector does the product in each step take less."""
    x, y = 0.1 * values(200, columns).astype(dtype), values(200, *targets, seed=1).astype(dtype)
    assert transposes(jax.make_jaxpr(descent)(x, y).jaxpr) != []
    assert (transposes(optimised_program(descent, x, y)) != []) == stays
    assert_same(descent, x, y, tolerance=5e-2 if dtype != "float32" else 1e-5)


def test_what_varies_from_step_to_step_is_turned():
    """No step's own matrix is converted before the loop."""

    def each(xs, y):
        return jax.lax.scan(lambda w, x: (w - 0.01 * (x.T @ (x @ w - y)), None), jnp.zeros(8, xs.dtype), xs)[0]

    xs, y = 0.1 * values(6, 200, 8).astype("bfloat16"), values(200).astype("bfloat16")
    assert transposes(optimised_program(each, xs, y)) == []
    assert_same(each, xs, y, tolerance=5e-2)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only this backend converts halves")
@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "stays"),
    [
        ("bfloat16", 9000, 5, True),
        ("float16", 9000, 5, True),
        ("bfloat16", 9000, 100, False),
        ("bfloat16", 900, 5, False),
        ("float32", 9000, 5, False),
    ],
)
def test_a_long_argument_of_short_floats_is_turned(dtype, rows, columns, stays):
    """XLA takes the transpose along when it converts it; read against narrow rows the product takes up to 2.6 times."""
    x, y = values(rows, columns).astype(dtype), values(rows, seed=1).astype(dtype)
    assert (transposes(optimised_program(lambda x, y: x.T @ y, x, y)) != []) == stays
    assert_same(lambda x, y: x.T @ (y * 0.01), x, y, tolerance=5e-2 if dtype != "float32" else 1e-5)
