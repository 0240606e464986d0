"""Mapped axes through calls, branches and loops."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel._jax import primitives
from aerogel.compiler.axes import Axis, Mapped, No, along, along_output, jaxpr_along

from .axes_cases import Case, draw
from .axes_judge import equations, judge, judge_every_axis, judge_vmapped

f32, i32 = jnp.float32, jnp.int32


def _recurrence(w: Any, h: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (jnp.tanh(c @ w + x), c * 2), h, xs)


def _counted(n: Any, x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))


def _choice(which: Any, x: Any, y: Any) -> Any:
    return lax.switch(
        which, [lambda x, y: x + y, lambda x, y: jnp.ones_like(x), lambda x, y: y * jnp.arange(4.0)], x, y
    )


def _cumulative(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, a: a.at[:, i].add(x[:, 0]), x)


@jax.jit
def _softmax(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    return e / jnp.sum(e, -1, keepdims=True) + jnp.eye(*x.shape, dtype=x.dtype)


CALLED = "closed_call" if "closed_call" in primitives else "eval_jaxpr"  # the name since jax 0.11


def _closed_call(x: Any) -> Any:
    called = primitives[CALLED]
    program = jax.make_jaxpr(lambda x: jnp.sin(x) + x)(x)
    return called.bind(x, **called.get_bind_params({"call_jaxpr": program}))


CASES = [
    Case(CALLED, _closed_call, [((3, 4), f32)]),
    Case("jit", lambda x: _softmax(x), [((3, 4), f32)], in_axes=[(0,), (2,)]),
    Case(
        "remat2",
        lambda x, y: jax.checkpoint(lambda x, y: jnp.sin(x) * y + jnp.arange(3)[:, None])(x, y),
        [((3, 4), f32), ((3, 4), f32)],
    ),
    Case(
        "remat2",
        jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x))),
        [((3, 4), f32)],
        "gradient",
        [(0,)],
    ),
    Case(
        "scan",
        _recurrence,
        [((2, 2), f32), ((3, 2), f32), ((4, 3, 2), f32)],
        in_axes=[(None, 0, 1), (None, None, 0), (0, 0, None)],
    ),
    Case(
        "scan", lambda x: lax.scan(lambda c, _: (jnp.cumsum(c, 1) / 2, None), x, length=3)[0], [((3, 4), f32)], "no-xs"
    ),
    Case(
        "scan",
        lambda xs: lax.scan(lambda c, x: (c + x, c), jnp.zeros((3,)), xs, reverse=True, unroll=2),
        [((4, 3), f32)],
        "reverse",
    ),
    Case("while", _counted, [((), i32), ((3, 4), f32)], in_axes=[(None, 0), (None, 2)]),
    Case("scan", _cumulative, [((3, 4), f32)], "fori"),
    Case("cond", _choice, [((), i32), ((3, 4), f32), ((3, 4), f32)], in_axes=[(None, 0, 1), (None, None, 0)]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_hold_on_numbers(case: Case, rng: np.random.Generator) -> None:
    """Along every axis of every input, blocks of a nested program are blocks of its result; some axis passes."""
    answers = judge_every_axis(case.fun, [draw(rng, *t) for t in case.types])
    assert any(isinstance(answer, Mapped) for eqn, _, _, answer in answers if eqn.primitive.name == case.primitive)


# JAX's own type check of a batched closed_call fails (0.10.2, jax_enable_checks).
@pytest.mark.parametrize("case", [c for c in CASES if c.primitive != CALLED], ids=str)
def test_gives_back_what_vmap_batched(case: Case, rng: np.random.Generator) -> None:
    """`vmap` of a nested program is found to be that program once per index."""
    for in_axes in case.in_axes or [(0,) * len(case.types)]:
        shapes = [s if at is None else (*s[:at], 3, *s[at:]) for (s, _), at in zip(case.types, in_axes, strict=True)]
        args = [draw(rng, shape, dtype) for shape, (_, dtype) in zip(shapes, case.types, strict=True)]
        judge_vmapped(case.fun, args, in_axes, 3)


def _only(fun: Callable[..., Any], *args: Any) -> tuple[Any, Any, Any]:
    """The last equation: clamping of a branch index may stand before it."""
    *_, found = equations(fun, args)
    return found


def test_a_loop_does_not_pass_its_own_axis() -> None:
    """The leading dimension of a scan's inputs and outputs is the loop's."""
    eqn, _, _ = _only(lambda xs: lax.scan(lambda c, x: (c + x, c), jnp.float32(0), xs), jnp.ones((5,)))
    assert isinstance(along(eqn, {1: Axis(0)}, 5), No)
    assert isinstance(along_output(eqn, {1: Axis(0)}, 5), No)


def test_a_carry_that_moves_the_axis_is_refused() -> None:
    """A body that transposes its carry stands in another place at every second step."""
    eqn, _, _ = _only(lambda x: lax.fori_loop(0, 3, lambda i, c: c.T, x), jnp.ones((3, 3)))
    answer = along(eqn, {0: Axis(0)}, 3) if len(eqn.invars) == 1 else along(eqn, {len(eqn.invars) - 1: Axis(0)}, 3)
    assert isinstance(answer, No)


def test_a_condition_that_varies_is_refused() -> None:
    """`vmap` of a `while` with a batched condition stops at the slowest index: that is not one loop per index."""
    fun = jax.vmap(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))
    eqn, _, _ = _only(fun, jnp.arange(4.0))
    assert isinstance(along(eqn, {0: Axis(0)}, 4), No)


def test_an_initial_carry_becomes_varying_with_its_result() -> None:
    """A carry that starts the same everywhere but meets the axis in the body is asked for as blocks."""
    eqn, ins, outs = _only(lambda h, xs: lax.scan(lambda c, x: (c + x, None), h, xs)[0], jnp.ones(3), jnp.ones((5, 3)))
    answer = judge(eqn, {1: Axis(1)}, ins, outs, 3)
    assert isinstance(answer, Mapped)
    assert answer.ins == (Axis(0), Axis(1))


@jax.custom_jvp
def _with_rule(x: Any) -> Any:
    return jnp.sin(x)


_with_rule.defjvp(lambda primals, tangents: (_with_rule(*primals), 2 * tangents[0]))


@jax.custom_vjp
def _with_backward(x: Any) -> Any:
    return jnp.sin(x)


_with_backward.defvjp(lambda x: (jnp.sin(x), None), lambda _, g: (2 * g,))


def test_backward_rules_are_not_lost() -> None:
    """A block of a `custom_vjp` function has the user's derivative (2 here), not that of its numbers (cos)."""
    eqn, ins, outs = _only(_with_backward, jnp.ones((3, 2)))
    answer = judge(eqn, {0: Axis(0)}, ins, outs, 3)
    assert isinstance(answer, Mapped)
    _, pull = jax.vjp(lambda x: answer.block(0, 2, x)[0], ins[0][:2])
    np.testing.assert_array_equal(pull(jnp.ones((2, 2)))[0], jnp.full((2, 2), 2.0))
    later = along(eqn, {0: Axis(0)}, 3, after_differentiation=True)
    assert isinstance(later, Mapped)
    np.testing.assert_array_equal(later.block(1, 2, ins[0][1:])[0], outs[0][1:])


def _reverse(fun: Any, forward: Any, backward: Any) -> Any:
    fun = jax.custom_vjp(fun)
    fun.defvjp(forward, backward)
    return fun


OTHER_RULES = {
    "the backward pass mixes": _reverse(jnp.sin, lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cumsum(g * x, 0),)),
    "the forward pass mixes": _reverse(jnp.sin, lambda x: (jnp.sin(x), x.sum(0)), lambda r, g: (g * r,)),
    "a weight has a gradient": _reverse(
        lambda x, w: x * w, lambda x, w: (x * w, (x, w)), lambda r, g: (g * r[1], (g * r[0]).sum(0))),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_RULES)
def test_backward_rules_that_do_not_map_are_refused(name: str) -> None:
    """The function maps along the axis, one of its rules does not: no block has that derivative."""
    args = [jnp.ones((3, 2)), jnp.ones(2)][: 2 if "weight" in name else 1]
    eqn, _, _ = _only(OTHER_RULES[name], *args)
    answer = along(eqn, {0: Axis(0)}, 3)
    assert isinstance(answer, No)
    assert "derivative rules" in answer.reason


def test_forward_rules_are_not_lost() -> None:
    """A block of a `custom_jvp` function has the user's derivative (2 here), not that of its numbers (cos)."""
    eqn, ins, outs = _only(_with_rule, jnp.ones((3, 2)))
    answer = judge(eqn, {0: Axis(0)}, ins, outs, 3)
    assert isinstance(answer, Mapped)
    _, tangent = jax.jvp(lambda x: answer.block(0, 2, x)[0], (ins[0][:2],), (jnp.ones((2, 2)),))
    np.testing.assert_array_equal(tangent, jnp.full((2, 2), 2.0))


def test_a_call_hides_no_custom_derivative() -> None:
    """The refusal of a function whose backward rule mixes indices passes through the calls around it."""
    fun = OTHER_RULES["the backward pass mixes"]
    eqn, _, _ = _only(lambda x: jax.checkpoint(jax.jit(fun))(x), jnp.ones((3, 2)))
    assert isinstance(along(eqn, {0: Axis(0)}, 3), No)
    assert isinstance(along(eqn, {0: Axis(0)}, 3, after_differentiation=True), Mapped)


def test_checkpoints_stay() -> None:
    """A block of a checkpointed function is checkpointed with the same params."""
    policy = jax.checkpoint_policies.dots_saveable
    eqn, ins, _ = _only(jax.checkpoint(lambda x: jnp.sin(x) * 2, policy=policy), jnp.ones((3, 2)))
    answer = along(eqn, {0: Axis(0)}, 3)
    assert isinstance(answer, Mapped)
    (again,) = jax.make_jaxpr(lambda x: answer.block(0, 2, x))(ins[0][:2]).jaxpr.eqns
    assert again.primitive is eqn.primitive
    assert {k: v for k, v in again.params.items() if k != "jaxpr"} == {
        k: v for k, v in eqn.params.items() if k != "jaxpr"
    }


def test_wanted_outputs_of_a_nested_program() -> None:
    """An output that does not vary is given as blocks where that is wanted, made from the start of the block."""
    program = jax.make_jaxpr(lambda x: (x + 1, jnp.arange(6).reshape(3, 2)))(jnp.ones((3, 2)))
    answer = jaxpr_along(program, {0: Axis(0)}, 3, outs={1: Axis(0)})
    assert isinstance(answer, Mapped)
    assert answer.outs == (Axis(0), Axis(0))
    assert answer.uses_start
    np.testing.assert_array_equal(answer.block(1, 1, jnp.ones((1, 2)))[1], [[2, 3]])


def test_invariant_inputs_are_taken_as_they_are_needed() -> None:
    """An input that only meets the axis as blocks is asked for as blocks; one that is needed whole is cut inside."""
    program = jax.make_jaxpr(lambda x, y, z: x * y + z * jnp.sum(z))(*[jnp.ones((3, 2))] * 3)
    answer = jaxpr_along(program, {0: Axis(0)}, 3)
    assert isinstance(answer, Mapped)
    assert answer.ins == (Axis(0), Axis(0), None)
    assert answer.uses_start


def test_effects_are_walls() -> None:
    """A nested program that prints is not run in another number of blocks, even if what is printed does not vary."""
    fun = lambda x: (jax.debug.print("{}", 1), x + 1)[1]  # noqa: E731
    eqn, _, _ = _only(lambda x: jax.jit(fun)(x), jnp.ones(3))
    assert isinstance(along(eqn, {0: Axis(0)}, 3), No)
    assert isinstance(jaxpr_along(jax.make_jaxpr(fun)(jnp.ones(3)), {0: Axis(0)}, 3), No)


def test_branches_that_need_an_input_in_two_forms() -> None:
    """What one branch takes as blocks and another sums over is given whole to both."""
    x = jnp.arange(6.0).reshape(3, 2)
    branches = [lambda x, y: x + y, lambda x, y: x * jnp.sum(y)]
    eqn, ins, outs = _only(lambda i, x, y: lax.switch(i, branches, x, y), jnp.int32(1), x, x + 1)
    answer = judge(eqn, {1: Axis(0)}, ins, outs, 3)
    assert isinstance(answer, Mapped)
    assert answer.ins == (None, Axis(0), None)


def test_programs_from_an_x64_context_keep_their_types() -> None:
    """Blocks of a program that was traced with 64-bit types have them, whatever the context is now."""
    with jax.enable_x64(True):
        h, xs = jnp.ones((3, 2)), jnp.ones((4, 3, 2))
        eqn, ins, outs = _only(lambda h, xs: lax.scan(lambda c, x: (c * 2 + jnp.arange(3)[:, None], x), h, xs), h, xs)
    assert {out.dtype for out in outs} == {np.dtype(np.float64)}
    answer = along(eqn, {i: Axis(0) for i, x in enumerate(ins) if x.shape == (3, 2)}, 3)
    assert isinstance(answer, Mapped)
    program = jax.make_jaxpr(lambda *blocks: answer.block(0, 3, *blocks))(*ins)
    assert {v.aval.dtype for v in program.jaxpr.outvars} == {np.dtype(np.float64)}
