"""The judge of mapped axes: runs answers on numbers. It knows nothing of the table."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel._jax import Literal, evaluate
from aerogel.compiler.axes import Answer, Axis, Mapped, No, Reduced, along, along_output


def equations(fun: Callable[..., Any], args: Sequence[Any]) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Each equation of `fun`'s program, with the numbers that go in and out of it."""
    program = jax.make_jaxpr(fun)(*args)
    jaxpr = program.jaxpr
    inner = [v for eqn in jaxpr.eqns for v in eqn.outvars]
    everything = type(program)(
        jaxpr.replace(outvars=inner, debug_info=jaxpr.debug_info.with_unknown_names()), program.consts
    )
    values = dict(zip(inner, evaluate(everything, args), strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True)) | dict(zip(jaxpr.constvars, program.consts, strict=True))
    for eqn in jaxpr.eqns:
        ins = [jnp.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else values[v] for v in eqn.invars]
        yield eqn, ins, [values[v] for v in eqn.outvars]


def spans(length: int) -> list[list[tuple[int, int]]]:
    """Ways to cut an axis: into single indices, into pairs with a remainder, not at all."""
    return [[(at, min(size, length - at)) for at in range(0, length, size)] for size in sorted({1, 2, max(length, 1)})]


def same(got: Any, wanted: Any, what: str) -> None:
    """Types are equal; numbers too, but for the rounding of floats in another order."""
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    assert got.dtype == wanted.dtype, f"{what}: dtype {got.dtype}, wanted {wanted.dtype}"
    if jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
        got, wanted = jax.random.key_data(got), jax.random.key_data(wanted)
    if jnp.issubdtype(got.dtype, jnp.inexact):
        wide = np.complex128 if jnp.issubdtype(got.dtype, jnp.complexfloating) else np.float64
        tolerance = 40 * float(jnp.finfo(got.dtype).eps)
        got, wanted = np.asarray(got).astype(wide), np.asarray(wanted).astype(wide)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, err_msg=what)
    else:
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted), err_msg=what)


def _run(answer: Mapped | Reduced, size: int, start: int, ins: Sequence[Any], length: int) -> list[Any]:
    """One block of an equation; `start` is traced where it matters."""
    given = [x if axis is None else cut(x, axis, length, start, size) for x, axis in zip(ins, answer.ins, strict=True)]
    if not answer.uses_start:
        return answer.block(start, size, *given)
    blocks = jax.jit(lambda at, *given: answer.block(at, size, *given))(jnp.int32(start), *given)
    for traced, static in zip(blocks, answer.block(start, size, *given), strict=True):
        same(traced, static, "a static start gives the same as a traced one")
    return blocks


def cut(x: Any, axis: Axis, length: int, start: int, size: int) -> Any:
    """A block of a value, by NumPy (the judge does not use `take_block`)."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(cut(jax.random.key_data(x), axis, length, start, size))
    x = np.asarray(x)
    whole = x.reshape(*x.shape[: axis.dim], axis.outer, length, axis.inner, *x.shape[axis.dim + 1 :])
    part = whole[(slice(None),) * (axis.dim + 1) + (slice(start, start + size),)]
    return jnp.asarray(part.reshape(axis.resize(x.shape, size)))


def judge_mapped(eqn: Any, answer: Mapped, ins: Sequence[Any], outs: Sequence[Any], length: int) -> None:
    """Every block of the equation is the block of its outputs."""
    assert len(answer.ins) == len(ins)
    assert len(answer.outs) == len(outs)
    for start, size in sorted(set(itertools.chain(*spans(length)))):
        blocks = _run(answer, size, start, ins, length)
        assert len(blocks) == len(outs)
        for got, out, axis in zip(blocks, outs, answer.outs, strict=True):
            wanted = out if axis is None else cut(out, axis, length, start, size)
            same(got, wanted, f"block {start}+{size} of {length} of {eqn}, {answer.ins} -> {answer.outs}")


def judge_reduced(eqn: Any, answer: Reduced, ins: Sequence[Any], outs: Sequence[Any], length: int) -> None:
    """Partial results of blocks, combined in any order with the identity, finish to the equation's outputs."""
    for parts in spans(length):
        partials = [tuple(_run(answer, size, start, ins, length)) for start, size in parts]
        if not partials:
            continue
        for order in (partials, partials[::-1]):
            total = answer.monoid.identity([jax.typeof(x) for x in partials[0]])
            for identity, part in zip(total, partials[0], strict=True):
                assert (identity.shape, identity.dtype) == (part.shape, part.dtype)
            for part in order:
                total = answer.monoid.combine(total, part)
            for got, wanted in zip(answer.finish(*total), outs, strict=True):
                same(got, wanted, f"reduction of {len(partials)} blocks of {eqn}, {answer.ins}")


def judge(eqn: Any, known: Mapping[int, Axis], ins: Sequence[Any], outs: Sequence[Any], length: int) -> Answer:
    """The answer about one equation, after it was run: numbers, shapes, types, and the way back."""
    answer = along(eqn, known, length)
    match answer:
        case Mapped():
            for position, axis in known.items():
                assert answer.ins[position] == axis
            judge_mapped(eqn, answer, ins, outs, length)
            judge_backwards(eqn, answer, length)
        case Reduced():
            judge_reduced(eqn, answer, ins, outs, length)
        case No(reason):
            assert reason
    return answer


def judge_backwards(eqn: Any, answer: Mapped, length: int) -> None:
    """Asked about an output, the equation says the same as asked about an input."""
    for position, axis in enumerate(answer.outs):
        if axis is not None:
            if eqn.primitive.name == "optimization_barrier":
                continue  # each of its outputs comes from its own input alone
            back = along_output(eqn, {position: axis}, length)
            assert isinstance(back, Mapped), f"{eqn}: {back}"
            assert (back.ins, back.outs) == (answer.ins, answer.outs), f"{eqn}: {back} is not {answer}"


def axes_of(shape: Sequence[int]) -> Iterator[tuple[Axis, int]]:
    """Every axis, plain and merged, that a value of this shape could hold, with its length."""
    for dim, size in enumerate(shape):
        for outer, length in itertools.product(range(1, max(size, 1) + 1), range(size + 1)):
            inner, rest = divmod(size, outer * length) if length else (1, size)
            if rest == 0 and (length != 1 or size == 1) and (size or outer == 1):
                yield Axis(dim, outer, inner), length


def judge_every_axis(fun: Callable[..., Any], args: Sequence[Any]) -> list[tuple[Any, int, Axis, Answer]]:
    """All answers about all equations of `fun`, one input at a time, along every axis that could stand there."""
    answers = []
    for eqn, ins, outs in equations(fun, args):
        for position, value in enumerate(ins):
            for axis, length in axes_of(value.shape):
                known = {i: axis for i, v in enumerate(eqn.invars) if v is eqn.invars[position]}
                answers.append((eqn, position, axis, judge(eqn, known, ins, outs, length)))
    return answers


def judge_vmapped(fun: Callable[..., Any], args: Sequence[Any], in_axes: Sequence[int | None], length: int) -> None:
    """`vmap(fun)` is found to be `fun` once per index: equation by equation, and in the end against `fun` itself.

    `args` are those of one index; each mapped one is given its axis at `in_axes`.
    """
    batched = jax.vmap(fun, in_axes=tuple(in_axes))
    program = jax.make_jaxpr(batched)(*args)
    where: dict[Any, Axis] = {
        v: Axis(at) for v, at in zip(program.jaxpr.invars, in_axes, strict=True) if at is not None
    }
    slices = [
        {v: cut(x, where[v], length, t, 1) for v, x in zip(program.jaxpr.invars, args, strict=True) if v in where}
        for t in range(length)
    ]
    for (eqn, ins, outs), own in zip(equations(batched, args), program.jaxpr.eqns, strict=True):
        known = {i: where[v] for i, v in enumerate(own.invars) if not isinstance(v, Literal) and v in where}
        if not known:
            continue
        answer = judge(eqn, known, ins, outs, length)
        assert isinstance(answer, Mapped), f"{eqn} of vmap{tuple(in_axes)}: {answer}"
        for t, here in enumerate(slices):
            given = [
                cut(x, a, length, t, 1) if a is not None and i not in known else here[v] if i in known else x
                for i, (v, x, a) in enumerate(zip(own.invars, ins, answer.ins, strict=True))
            ]
            here.update(zip(own.outvars, answer.block(t, 1, *given), strict=True))
        where |= {v: a for v, a in zip(own.outvars, answer.outs, strict=True) if a is not None}
    for t, here in enumerate(slices):
        one = fun(
            *(
                x if at is None else jax.lax.index_in_dim(x, t, at, keepdims=False)
                for x, at in zip(args, in_axes, strict=True)
            )
        )
        for got, out in zip(jax.tree.leaves(one), program.jaxpr.outvars, strict=True):
            if out in where:
                assert where[out].dim == 0
                same(jnp.reshape(here[out], got.shape), got, f"index {t} of vmap{tuple(in_axes)} of {fun}")
