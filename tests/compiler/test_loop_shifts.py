"""What the steps of a loop roll along rows is written once with its ends, and rolls are slices of that."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.passes.loop_shifts import LoopShifts
from aerogel.compiler.rolled.shifts import with_ends
from compiler.loop_patterns import normal
from compiler.programs_of import scans, traced
from drawing.free_prices import free_prices

X = 0.1 * normal(0, 20_000)
IMAGE = 0.1 * normal(1, 150, 200)
CELLS = jnp.asarray(np.random.default_rng(2).integers(0, 2, (150, 200)), "int32")


def optimised(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function with this pass alone."""
    return ag.optimize(f, passes=(LoopShifts(),), rules=(), **options)


def decided(f: Callable[..., Any], *args: Any) -> list[bool]:
    """For each value that is rolled, whether it is written with its ends."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, on_report=reports.append))(*args)
    return [d.fired for d in reports[-1].decisions if d.rule == "loop-shifts"]


def steps(step: Callable[[Any], Any], length: int = 3) -> Callable[[Any], Any]:
    """So many steps of a loop."""
    return lambda x: lax.scan(lambda x, _: (step(x), None), x, None, length=length)[0]


def heat(u: Any) -> Any:
    """Diffusion on a ring, or a torus."""
    return u + sum(0.2 * (jnp.roll(u, 1, a) - 2 * u + jnp.roll(u, -1, a)) for a in range(u.ndim))


def far(u: Any) -> Any:
    """A stencil of several widths, to one side more than to the other."""
    return 0.3 * jnp.roll(u, 7, -1) - 0.2 * jnp.roll(u, -2, -1) + 0.1 * jnp.roll(u, 1, -1) - jnp.sin(u)


def flow(u: Any) -> Any:
    """What is rolled is made in the step."""
    flux = jnp.tanh(u) * u
    return u - 0.1 * (jnp.roll(flux, -1, -1) - jnp.roll(flux, 1, -1))


def reflected(u: Any) -> Any:
    """Neighbours, where the ends are their own."""
    return u + jnp.concatenate([u[1:], u[-1:]]) + jnp.concatenate([u[:1], u[:-1]])


def life(cells: Any) -> Any:
    """A step of Conway's game, on a torus."""
    places = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    alive = sum(jnp.roll(cells, place, (0, 1)) for place in places)
    return ((alive == 3) | ((cells == 1) & (alive == 2))).astype(cells.dtype)


def reacted(u: Any) -> Any:
    """What is rolled to either side is read by something else too, so that cotangents of each side are rolled apart."""
    left, right, up, down = (jnp.roll(u, k, axis) for axis in (1, 0) for k in (1, -1))
    return u - 0.01 * u * (left - right) + 0.1 * jnp.tanh(u) + 0.1 * (left + right + up + down - 4 * u)


def descended(u: Any) -> Any:
    """A step along the gradient of what neighbours have to do with each other."""
    near = lambda u: jnp.sum(jnp.exp(-((u - jnp.roll(u, 1)) ** 2))) + jnp.sum(jnp.tanh(u - jnp.roll(u, 2)))  # noqa: E731
    return u - 0.1 * jax.grad(near)(u)


def padded(mode: str, width: int = 1, of: Callable[[Any], Any] = lambda p: p) -> Callable[[Any], Any]:
    """Diffusion with ghost cells, `of` which something may be computed before neighbours are read."""

    def step(u: Any) -> Any:
        p, n = of(jnp.pad(u, width, mode=mode)), u.shape[-1]
        inner = tuple(slice(width, -width) for _ in u.shape[:-1])
        return u + 0.1 * (p[*inner, :n] - 2 * p[*inner, width : n + width] + p[*inner, 2 * width :])

    return step


def smoothed(u: Any, axis: int = -1, of: Callable[[Any], Any] = jnp.tanh) -> Any:
    """A step along the gradient of differences, a sum of paddings."""
    return u - 0.1 * jax.grad(lambda u: jnp.sum(of(jnp.diff(u, axis=axis)) ** 2))(u)


def conducted(u: Any) -> Any:
    """A step along the gradient of differences to both sides, beyond an edge that stays."""

    def energy(u: Any) -> Any:
        p = jnp.pad(u, ((0, 0), (1, 1)), mode="edge")
        return jnp.sum(jnp.exp(-((p[:, :-2] - u) ** 2))) + jnp.sum(jnp.exp(-((p[:, 2:] - u) ** 2)))

    return u - 0.1 * jax.grad(energy)(u)


def interior(u: Any) -> Any:
    """Diffusion between walls that stay as they are."""
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return u.at[1:-1, 1:-1].add(0.1 * (around - 4 * u[1:-1, 1:-1]) - 0.01 * u[1:-1, 1:-1] ** 3)


def walled(u: Any) -> Any:
    """Among zeros."""
    p = jnp.pad(u, ((1, 1), (2, 2)))
    return u + 0.1 * (p[2:, 2:-2] + p[:-2, 2:-2] + p[1:-1, 4:] - p[1:-1, 3:-1] + p[1:-1, :-4] - 3 * u) - 0.1 * u**3


def counted(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Steps of a loop that counts them."""
    return lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, step(c[1])), (0, x))[1]


def gradient(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of a sum of squares of where steps lead."""
    return jax.grad(lambda x: jnp.sum(steps(step)(x) ** 2))


FIRES: dict[str, tuple[int, Callable[..., Any], tuple[Any, ...]]] = {
    "a ring": (1, steps(heat), (X,)),
    "a torus": (1, steps(heat), (IMAGE,)),
    "several widths": (1, steps(far), (X,)),
    "rolls of rolls": (
        1,
        steps(lambda u: u - jnp.roll(jnp.roll(u, 7000), 7000) + jnp.roll(u, 1)),
        (X[:9000],),
    ),
    "half way round": (1, steps(lambda u: u - jnp.roll(u, 10_000) + jnp.roll(u, 1)), (X,)),
    "a value of the step": (1, steps(flow), (X,)),
    "two values": (2, steps(lambda u: heat(u) + flow(u)), (X,)),
    "the gradient": (2, gradient(heat), (X,)),
    "the gradient of what is made": (2, gradient(flow), (IMAGE,)),
    "under vmap": (1, jax.vmap(steps(heat)), (IMAGE,)),
    "a while loop": (1, counted(heat), (X,)),
    "a branch in a loop": (1, steps(lambda u: lax.cond(u[0] > 0, heat, lambda u: u, u)), (X,)),
    "a value that stays": (1, lambda x: lax.scan(lambda u, _: (heat(u), u), x, None, length=3), (X,)),
    "double precision": (1, steps(heat), (X.astype("float64"),)),
    "along both axes at once": (1, steps(life), (jnp.round(abs(IMAGE)),)),
    "integers": (1, steps(life), (CELLS,)),
    "bytes, a few of them": (1, steps(life), (CELLS[:16, :16].astype("uint8"),)),
    "signed bytes, under vmap": (1, jax.vmap(steps(life)), (CELLS.astype("int8").reshape(3, 50, 200),)),
    "a gradient of sides that are rolled apart": (3, gradient(reacted), (IMAGE,)),
    "a gradient of short rows": (3, gradient(reacted), (IMAGE[:70, :70],)),
    "short rows, but much is computed": (1, steps(reacted), (IMAGE[:, :20],)),
    "ghost cells of short rows, but much is computed": (
        1,
        steps(padded("edge", of=lambda p: p - jnp.exp(-p * p) * 0.1 + p**3 * 0.01 - jnp.tanh(p) * 0.1)),
        (IMAGE[:, :20],),
    ),
    "of few entries, dear": (3, steps(descended), (X[:300],)),
    "periodic ghost cells": (1, steps(padded("wrap")), (IMAGE,)),
    "ghost cells of the edge": (1, steps(padded("edge", 2)), (X[:2000],)),
    "mirrored ghost cells": (1, steps(padded("reflect")), (IMAGE[:64, :64],)),
    "symmetric ghost cells of integers": (1, steps(lambda u: padded("symmetric")(u).astype("int32")), (CELLS,)),
    "what is computed of ghost cells": (1, steps(padded("wrap", of=lambda p: p * p + p)), (X,)),
    "the gradient of ghost cells": (2, gradient(padded("wrap")), (IMAGE,)),
    "ghost cells under vmap": (1, jax.vmap(steps(padded("edge"))), (IMAGE,)),
    "a gradient of an interior": (1, gradient(interior), (IMAGE,)),
    "a gradient of what is among zeros": (1, gradient(walled), (IMAGE,)),
    "what is computed is padded": (2, steps(lambda u: smoothed(u, -1, jnp.square) + 0 * smoothed(u, 0)), (IMAGE,)),
    "what is dear is padded, and read as it is": (3, steps(conducted), (IMAGE,)),
    "what is dear is padded": (1, steps(smoothed), (IMAGE,)),
    "ghost cells that a step hands on": (
        1,
        lambda x: lax.scan(lambda u, _: (padded("edge")(u), jnp.pad(u, 1, mode="edge")), x, None, length=3),
        (IMAGE,),
    ),
    "ghost cells of a while loop": (1, counted(padded("edge")), (X,)),
}


@pytest.mark.parametrize("name", FIRES)
@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_fires(name: str, numerics: str) -> None:
    """On each such value; types and values stay."""
    count, f, args = FIRES[name]
    with jax.enable_x64(name == "double precision"):
        args = tuple(np.asarray(x) for x in args)
        assert sum(decided(f, *args)) == count
        got, want = optimised(f, numerics=numerics)(*args), f(*args)
        assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
        exact = np.finfo(args[0].dtype).eps if args[0].dtype.kind == "f" else 0
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=20 * exact), got, want)


@pytest.mark.parametrize("by_conditions", [False, True])
@pytest.mark.parametrize("ends", [(1, 1), (7, 2), (0, 3), (3, 0), (10_000, 1)])
@pytest.mark.parametrize("x", [X, IMAGE[:, :5], IMAGE[0, :1]], ids=lambda x: str(x.shape))
def test_ends_are_joined_or_written(x: Any, ends: tuple[int, int], by_conditions: bool, monkeypatch: Any) -> None:
    """Into place where XLA joins pieces of an only axis with conditions; every bit is the same."""
    monkeypatch.setattr(_jax, "JOINS_BY_CONDITIONS", by_conditions)
    before, behind = (tuple(min(n, size) for size in x.shape) for n in ends)
    extended = with_ends(before, behind)
    written = str(jax.make_jaxpr(extended)(x)).count("dynamic_update_slice")
    assert written == (sum(map(bool, ends)) if by_conditions and x.ndim == 1 else 0)
    np.testing.assert_array_equal(jax.jit(extended)(x), np.pad(x, tuple(zip(before, behind, strict=True)), "wrap"))


@pytest.mark.parametrize(("function", "stays"), [(jnp.tanh, True), (jnp.sqrt, True), (jnp.exp, False)])
def test_what_steps_are_given_is_read_as_it_is(function: Callable[[Any], Any], stays: bool) -> None:
    """By functions that LLVM makes no vector code of beside neighbours of what they read."""

    def f(x: Any) -> Any:
        return lax.map(lambda u: function(u) + jnp.roll(u, 1) - jnp.roll(u, -1), x)

    x = jnp.tile(X, (4, 1))
    assert decided(f, x) == [True]
    body = scans(jax.make_jaxpr(optimised(f))(x))[0].params["jaxpr"].jaxpr
    (read,) = [eqn.invars[0] for eqn in body.eqns if eqn.primitive.name == function.__name__]
    assert (read in body.invars) == stays


def variation(u: Any) -> Any:
    """A step down the total variation along rows: what is rolled again is divided, and made in a kernel of its own."""
    x = jnp.roll(u, -1, 1) - u
    x = x / jnp.sqrt(x * x + 0.1)
    return u + 0.05 * (x - jnp.roll(x, 1, 1))


NEAR_MISSES: dict[str, tuple[list[bool], Callable[..., Any], tuple[Any, ...]]] = {
    "no loop": ([], heat, (X,)),
    "one roll, which LLVM takes out of the loop": ([False], steps(lambda u: u - 0.1 * jnp.roll(u, 1)), (X,)),
    "one roll each in two kernels": ([False, False], steps(variation), (IMAGE[:70],)),
    "short rows": ([False], steps(lambda u: u - 0.1 * (jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1))), (IMAGE[:, :48],)),
    "a gradient of short rows": ([True, False, False], gradient(reacted), (IMAGE[:, :48],)),
    "no entries": ([], steps(life), (CELLS[:0],)),
    "no rows": ([], steps(lambda u: u + jnp.concatenate([u[2:], u[:2]]) + jnp.concatenate([u[3:], u[:3]])), (X[:0],)),
    "few entries": ([False], steps(heat), (X[:200],)),
    "the first axis": ([], steps(lambda u: jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0)), (IMAGE,)),
    "the same in all steps": ([], lambda x: steps(lambda u: u + heat(x))(x), (X,)),
    "what stays a roll": ([], lambda x: lax.scan(lambda u, _: (u + 1, jnp.roll(u, 1)), x, None, length=3), (X,)),
    "half precision": ([], steps(heat), (X.astype(jnp.bfloat16),)),
    "an overlap": ([], steps(lambda u: jnp.concatenate([u[5:], u[:6]])[:-1] + u), (X,)),
    "a reflection": ([], steps(reflected), (X,)),
    "ghost cells of zeros, which XLA stores": ([], steps(padded("constant")), (IMAGE,)),
    "ghost cells of short rows": ([False], steps(padded("edge")), (IMAGE[:, :20],)),
    "ghost cells, few": ([False], steps(padded("edge")), (X[:200],)),
    "what is dear is padded along columns": ([], steps(lambda u: smoothed(u, 0)), (IMAGE,)),
    "few dear entries are padded": ([False], steps(smoothed), (X[:60],)),
    "pieces that are joined again": (
        [False],
        steps(lambda u: u - 0.1 * jax.grad(lambda u: jnp.sum(jnp.tanh(u[:9000] + u[9000:]) ** 2))(u)),
        (X[:18_000],),
    ),
    "offsets of what is the same in all steps": (
        [],
        lambda x: steps(lambda u: u + sum(jnp.pad(x[2:], (k, 2 - k)) for k in range(3)))(x),
        (X,),
    ),
    "few offsets of few entries": ([False], gradient(walled), (IMAGE[:3, :10],)),
    "ghost rows": ([], steps(lambda u: jnp.diff(jnp.pad(u, ((1, 0), (0, 0)), mode="edge"), axis=0)), (IMAGE,)),
    "ghost cells that are summed": (
        [],
        steps(lambda u: u + (p := jnp.pad(u, 1, mode="edge"))[:-2] + p[2:] + jnp.sum(p[1:])),
        (X,),
    ),
    "every second ghost cell": (
        [],
        steps(lambda u: jnp.tile((p := jnp.pad(u, 1, mode="edge"))[1::2], 2)[:-2] + p[2:]),
        (X,),
    ),
    "ghost cells, the same in all steps": ([], lambda x: steps(lambda u: u + padded("edge")(x))(x), (X,)),
    "paddings that overlap": ([], steps(lambda u: jnp.pad(u[1:], (0, 1)) + jnp.pad(u[:2], (19_997, 1))), (X,)),
    "paddings of ones": (
        [],
        steps(lambda u: jnp.pad(u[1:], (0, 1), constant_values=1) + jnp.pad(u[:1], (19_999, 0), constant_values=1)),
        (X,),
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What is no roll, what XLA sees to by itself, and what does not pay."""
    wanted, f, args = NEAR_MISSES[name]
    assert decided(f, *args) == wanted
    assert bool(scans(traced(f, *args))) == (name != "no loop")


def test_one_roll_each_in_two_kernels_of_many_entries() -> None:
    """XLA shares these among threads, scalar code or not; and two rolls in one of them count where they are few."""
    assert decided(steps(variation), jnp.ones((128, 128))) == [True, True]
    both = lambda u: variation(u + 0.1 * jnp.roll(u, 1, 1))  # noqa: E731
    assert True in decided(steps(both), IMAGE[:70])


def test_takes_no_more_memory() -> None:
    """All that reads the value reads the longer one, in whose place of before the next one is written."""
    f = steps(heat, 100)

    def temporary(f: Callable[..., Any]) -> int:
        return jax.jit(f).lower(X).compile().memory_analysis().temp_size_in_bytes

    assert decided(f, X) == [True]
    beside = 81_000 if _jax.JOINS_BY_CONDITIONS else 0  # what ends are written into
    assert temporary(optimised(f)) <= temporary(f) + 4096 + beside


def drawn(rng: np.random.Generator, dtype: str) -> Callable[[Any], Any]:
    """A step that reads neighbours: around, beyond an edge, of an interior, of differences."""
    functions = (jnp.tanh, jnp.cos, lambda v: 1 / (1 + v * v))
    whole = dtype != "float32"

    def term(u: Any) -> Any:
        axis, k = int(rng.integers(u.ndim)), int(rng.integers(1, 3)) * int(rng.choice([-1, 1]))
        way = rng.integers(4 if whole else 5)
        if way == 0:
            return jnp.roll(u, tuple(int(n) for n in rng.integers(-3, 4, u.ndim)), tuple(range(u.ndim)))
        if way == 1:
            mode = str(rng.choice(["wrap", "edge", "reflect", "symmetric"]))
            sides = [(int(a), int(b)) for a, b in rng.integers(0, 3, (u.ndim, 2))]
            p = jnp.pad(u, sides, mode=mode)
            p = p * p if rng.integers(2) else p
            starts = [int(rng.integers(a + b + 1)) for a, b in sides]
            return sum(lax.slice(p, at, np.add(at, u.shape)) for at in (starts, [a + b for a, b in sides]))
        if way == 2:
            return jnp.roll(jnp.roll(u, k, axis), int(rng.integers(-2, 3)), -1) + jnp.roll(u, 1, -1)
        if way == 3:
            inner = tuple(slice(1, -1) for _ in u.shape)
            near = u[(*inner[:-1], slice(2, None))] - u[(*inner[:-1], slice(None, -2))]
            return u.at[inner].add(near)
        of = functions[rng.integers(len(functions))]
        return jax.grad(lambda u: jnp.sum(of(jnp.diff(u, axis=axis))) + jnp.sum(of(jnp.diff(u, axis=-1))))(u)

    def step(u: Any) -> Any:
        terms = [term(u) for _ in range(rng.integers(1, 4))]
        if whole:
            return sum(terms) % 7
        return 0.5 * u + 0.1 * functions[rng.integers(len(functions))](sum(terms))

    return step


@pytest.mark.parametrize("seed", range(24))
def test_random_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written, values are the same bits but for signs of zeros, and gradients agree."""
    free_prices("into loops", monkeypatch.setattr)
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "float32", "int32", "uint8"]))
    shape = ((9,), (4, 7), (3, 4, 5))[rng.integers(3)]
    u = jnp.asarray(rng.integers(-4, 5, shape) if dtype != "float32" else rng.normal(size=shape), dtype)
    state = rng.bit_generator.state

    def f(u: Any) -> Any:
        rng.bit_generator.state = state
        return steps(drawn(rng, dtype))(u)

    def g(u: Any) -> Any:
        return jax.grad(lambda u: jnp.sum(jnp.sin(1e-3 * f(u))))(u)

    np.testing.assert_allclose(optimised(f)(u), f(u), rtol=0, atol=1e-6 if dtype == "float32" else 0)
    if dtype == "float32":
        np.testing.assert_allclose(optimised(g)(u), g(u), rtol=0, atol=1e-5)
        np.testing.assert_allclose(jax.jit(ag.optimize(g))(u), g(u), rtol=0, atol=1e-5)
