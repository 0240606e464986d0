"""Arrays with a pattern that a function closes over are seen like those that it makes itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler import program_cost
from aerogel.compiler.normal_form.array_patterns import pattern_of
from aerogel.compiler.normal_form.written_constants import with_constants_back, with_constants_written
from aerogel.compiler.normalize import normalize

N = 90
EYE = np.eye(N, dtype=np.float32)
ON_DEVICE = jnp.asarray(EYE)
TRIANGLE = np.tri(9, dtype=bool)
SQUARE = np.eye(10) > 0


@pytest.mark.parametrize(
    "array",
    [
        EYE,
        np.eye(9, dtype=jnp.bfloat16),
        np.eye(9)[None, :, None],
        np.eye(9) - 1 / 9,
        np.diag(np.arange(1.0, 11)),
        np.tri(9, 12, -3),
        np.tri(12, 9, 2, bool),
        np.tri(9, 30, 15, np.int8),
        np.triu(np.ones((10, 10))),
        np.triu(np.ones((10, 13)), 2),
        ~TRIANGLE,
        np.where(TRIANGLE, 0, -np.inf),
        np.where(TRIANGLE, -0.0, 1.0),
        np.where(SQUARE, 1.0, -0.0),
        np.where(SQUARE, -0.0, 1.0),
        np.full((4, 20), -0.0),
        np.ones(70, np.int32),
        np.eye(9)[[1, 2, 3, 4, 1, 2, 8, 8, 0, 0]],
        np.eye(9)[::-1],
        np.where(SQUARE, np.nan, 0.0),
        np.arange(8),
        np.arange(5, 305, 3, dtype=np.int16)[:, None],
        np.arange(255, 55, -1, dtype=np.int32)[None],
        np.array([250, 251, 252, 253, 254, 255, 256, 257]).astype(np.int64)[:, None, None],
    ],
)
def test_a_pattern_makes_the_array_bit_by_bit(array: np.ndarray) -> None:
    """Signs of zeros, infinities, offsets, sizes that differ, dimensions of length one."""
    pattern = pattern_of(array)
    assert pattern is not None
    with jax.enable_x64(True):
        made = np.asarray(jax.jit(pattern.make)(*pattern.parts))
    assert (made.dtype, made.shape, made.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize(
    "array",
    [
        np.eye(10, k=1),
        np.random.default_rng(0).random((10, 10)),
        np.full((8, 9), np.nan),
        np.eye(10) + np.eye(10)[::-1],
        np.tri(10) - np.eye(10)[::-1],
        np.where(np.arange(100) == 57, -0.0, 0.0).reshape(10, 10),
        np.zeros((2, 3)),
        np.zeros((0, 80)),
        np.broadcast_to(np.eye(9), (2, 9, 9)),
        np.eye(10).astype(np.complex64),
        np.arange(7),
        np.arange(10.0),
        np.arange(300, dtype=np.int64).astype(np.uint8),
        np.arange(20, 0, -1, dtype=np.uint8),
        np.arange(90) // 2,
        np.repeat(5, 20),
    ],
)
def test_other_arrays_have_none(array: np.ndarray) -> None:
    """Shifted diagonals, numbers, nan, what is nearly a pattern, few entries, batches, counters that wrap around."""
    assert pattern_of(array) is None


def square(seed: int, n: int = N) -> jax.Array:
    """A matrix of normal numbers."""
    return jax.random.normal(jax.random.key(seed), (n, n))


DIAGONAL = np.diag(np.arange(1, N + 1).astype(np.float32))
CENTRED = (np.eye(N) - 1 / N).astype(np.float32)
FORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "an identity": (lambda a, b: EYE @ a @ b, lambda a, b: a @ b),
    "an identity of JAX": (lambda a, b: ON_DEVICE @ a @ b, lambda a, b: a @ b),
    "a scaled identity that is added": (lambda a, b: (a + 0.1 * EYE) @ b[0], lambda a, b: a @ b[0] + 0.1 * b[0]),
    "a mask that leaves a diagonal": (lambda a, b: jnp.sum((a @ b) * EYE), lambda a, b: jnp.sum(a * b.T)),
    "a diagonal": (lambda a, b: DIAGONAL @ a + b, lambda a, b: jnp.arange(1.0, N + 1)[:, None] * a + b),
    "ones": (lambda a, b: a @ b @ np.ones((N, N), np.float32), lambda a, b: (a @ b.sum(1))[:, None] * jnp.ones(N)),
    "a mean that is subtracted": (lambda a, b: CENTRED @ a + b, lambda a, b: a - a.mean(0) + b),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_is_seen_as_what_it_is(form: str) -> None:
    """The work is that by hand; values and gradients are those of JAX."""
    natural, by_hand = FORMS[form]
    args = square(0), square(1)
    flops = [program_cost(jax.make_jaxpr(f)(*args)).flops for f in (natural, ag.optimize(natural), by_hand)]
    assert flops[1] < 0.8 * flops[0], flops
    assert flops[1] < 1.1 * flops[2], flops
    total = lambda f: lambda *a: jnp.sum(jnp.sin(f(*a)))  # noqa: E731
    with jax.enable_x64(True):
        wide = [x.astype(jnp.float64) for x in args]
        want = jax.jit(jax.value_and_grad(total(natural), (0, 1)))(*wide)
        got = jax.jit(ag.optimize(jax.value_and_grad(total(natural), (0, 1))))(*wide)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), want, got)


CLASSES = np.arange(N)


@pytest.mark.parametrize("classes", [CLASSES, jnp.asarray(CLASSES)])
def test_classes_that_are_compared_are_one_hot_rows(classes: Any) -> None:
    """`(labels[:, None] == np.arange(n)) @ table` picks rows, and its gradient adds them up."""
    labels, table = jax.random.randint(jax.random.key(3), (2 * N,), -2, N + 2), square(0)
    natural = lambda table: (labels[:, None] == classes).astype(table.dtype) @ table  # noqa: E731
    for f in (natural, jax.grad(lambda table: jnp.sum(natural(table) ** 2))):
        program = jax.make_jaxpr(ag.optimize(f))(table)
        assert "dot_general" not in {eqn.primitive.name for eqn in program.jaxpr.eqns}
        np.testing.assert_allclose(jax.jit(ag.optimize(f))(table), jax.jit(f)(table), rtol=1e-5, atol=1e-6)


def held(f: Callable[..., Any], *args: Any) -> tuple[list[tuple[int, ...]], set[str]]:
    """Shapes of the arrays that an optimised program holds, and the names of its operations."""
    program = jax.make_jaxpr(ag.optimize(f))(*args)
    return [x.shape for x in program.consts], {eqn.primitive.name for eqn in program.jaxpr.eqns}


def test_what_no_pass_has_used_is_put_back() -> None:
    """A program reads the array that it held, and computes none, though something else was rewritten."""
    matrix = np.asarray(square(7))
    for array in (EYE, CENTRED, np.tri(N, dtype=np.float32), matrix):
        shapes, names = held(lambda a, array=array: (jnp.sin(array + a), jnp.trace(a @ a)), square(0))
        assert shapes == [(N, N)]
        assert "iota" not in names, names
        assert "dot_general" not in names  # something was rewritten
    shapes, names = held(lambda a: (jnp.sin(np.eye(N, dtype=np.int32)[0][5] + a), jnp.trace(a @ a)), square(0))
    assert shapes == []
    # what was made of it is not held any more
    shapes, _ = held(lambda a, b: (EYE @ a, jnp.trace(a @ b)), square(0), square(1))
    assert shapes == []


def test_constants_return_as_they_were() -> None:
    """Written out and put back, a program is what it was, also where one is inside of a call and another a result."""
    inner = jax.jit(lambda a: jnp.sin(a + CENTRED))
    program: Any = jax.make_jaxpr(lambda a: (inner(a), inner(a * 2), EYE, DIAGONAL @ a))(square(0))
    written, constants = with_constants_written(program)
    assert len(constants) == 2  # what nothing reads but the caller stays
    assert sorted(x.shape for x in written.consts) == [(N,), (N, N)]
    back = with_constants_back(normalize(written)[0], constants)
    assert sorted(np.asarray(x).tobytes() for x in back.consts) == sorted(x.tobytes() for x in (EYE, CENTRED, DIAGONAL))
    want, got = (jax.core.eval_jaxpr(p.jaxpr, p.consts, square(0)) for p in (program, back))
    for x, y in zip(want, got, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_program_without_such_constants_is_the_same_object() -> None:
    """Nothing is rebuilt."""
    matrix = np.asarray(square(7))
    traced: Any = jax.make_jaxpr(lambda a: a @ matrix)(square(0))
    program = normalize(traced)[0]
    assert with_constants_written(program) == (program, [])


def test_nan_and_infinity_stay_where_masks_do_not_multiply() -> None:
    """An additive mask of negative infinities gives what it gave."""
    mask = np.where(np.tri(N, dtype=bool), 0, -np.inf).astype(np.float32)
    f = lambda q, k: jax.nn.softmax(q @ k.T + mask, -1) @ k  # noqa: E731
    args = square(0), square(1)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args), rtol=1e-4, atol=1e-5)
