"""What is known of a value is so: every record that `structure` keeps is looked up in the value itself."""

import gc
import math
import random
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel._jax import ClosedJaxpr, DropVar, evaluate
from aerogel.compiler.known.assume import assume
from aerogel.compiler.known.records import (
    Below,
    Constant,
    Counted,
    Diagonal,
    Finite,
    Identity,
    Kronecker,
    NonNegative,
    OneHot,
    Positive,
    Record,
    Repeated,
    Said,
    Separable,
    Shifted,
    Sorted,
    Spread,
    Symmetric,
    of_number,
    the,
)
from aerogel.compiler.known.structure import structure
from aerogel.compiler.normalize import normalize
from aerogel.compiler.program import with_equations
from compiler.programs_of import traced
from strategies import draw_program


def values_of(program: ClosedJaxpr, args: list[Any]) -> dict[Any, Any]:
    """Every value of the outermost level, by variable."""
    made = [v for eqn in program.jaxpr.eqns for v in eqn.outvars if not isinstance(v, DropVar)]
    wanted = [*program.jaxpr.constvars, *program.jaxpr.invars, *made]
    whole = with_equations(program.jaxpr, program.jaxpr.eqns, wanted)
    return dict(zip(wanted, evaluate(ClosedJaxpr(whole, program.consts), args), strict=True))


def holds(record: Record, value: Any, env: dict[Any, Any]) -> bool:
    """Whether a value is as a record says."""
    x = np.asarray(value)
    x = x.astype(np.float64) if x.dtype.kind == "V" else x
    places = np.indices(x.shape)
    match record:
        case Constant(number):
            return bool(np.all(x == np.asarray(number, x.dtype)))
        case Repeated(dim):
            return x.shape[dim] == 0 or bool(np.array_equal(x, np.repeat(x.take([0], dim), x.shape[dim], dim), True))
        case Counted(dim, scale, offset):
            return bool(np.all(x == scale * places[dim] + offset))
        case Identity(a, b):
            return bool(np.all(x == (places[a] == places[b])))
        case Below(a, b, by):
            return bool(np.all(x == (places[a] - places[b] >= by)))
        case Shifted(a, b, scale, rest):
            return bool(np.allclose(x, scale * (places[a] == places[b]) + rest, rtol=1e-6, atol=1e-6))
        case Diagonal(a, b):
            return bool(np.all(x[places[a] != places[b]] == 0))
        case OneHot(dim, index, along):
            return bool(np.all(x == (spread(env[index], along, x.ndim) == places[dim])))
        case Spread(source, along):
            return bool(
                np.array_equal(x, np.broadcast_to(spread(env[source], along, x.ndim), x.shape), x.dtype != bool)
            )
        case Symmetric(a, b):
            return bool(np.allclose(x, np.swapaxes(x, a, b), equal_nan=True))
        case Sorted(dim):
            return bool(np.all(np.diff(x.astype(np.float64), axis=dim) >= 0))
        case NonNegative():
            return bool(np.all(x >= 0))
        case Positive():
            return bool(np.all(x > 0))
        case Separable(one, other):
            return not np.isfinite(x).all() or is_product(x, sorted(one), sorted(other))
        case Kronecker(a, b):
            parts = [(n // k, k) for n in (x.shape[a], x.shape[b]) for k in range(1, n + 1) if n % k == 0]
            return any(is_kronecker(x, a, b, *p, *q) for p in parts for q in parts)
        case Said():
            return True  # by the test itself
        case Finite():
            return bool(np.all(np.isfinite(x)))


def is_product(x: Any, one: list[int], other: list[int]) -> bool:
    """Whether a value is a product of one that varies along some dimensions, and one that varies along others."""
    rest = [d for d in range(x.ndim) if d not in (*one, *other)]
    shape = [math.prod(x.shape[d] for d in dims) for dims in (rest, one, other)]
    for matrix in np.transpose(x, [*rest, *one, *other]).reshape(shape).astype(np.complex128):
        if matrix.size and np.linalg.matrix_rank(matrix, tol=1e-5 * np.abs(matrix).max()) > 1:
            return False
    return True


def is_kronecker(x: Any, a: int, b: int, m: int, p: int, n: int, q: int) -> bool:
    """Whether matrices are a product of one of `m` by `n` and one of `p` by `q`."""
    if (m * p, n * q) != (x.shape[a], x.shape[b]):
        return False
    moved = np.moveaxis(x, (a, b), (-2, -1))
    parts = moved.reshape(*moved.shape[:-2], m, p, n, q)
    return is_product(parts, [parts.ndim - 4, parts.ndim - 2], [parts.ndim - 3, parts.ndim - 1])


def spread(source: Any, along: tuple[int, ...], ndim: int) -> Any:
    """A value with its dimensions where they lie in another, the rest of size 1."""
    source = np.asarray(source)
    source = source.astype(np.float64) if source.dtype.kind == "V" else source
    kept = [d for d, to in enumerate(along) if to >= 0]
    order = sorted(kept, key=lambda d: along[d])
    shape = [1] * ndim
    for d in kept:
        shape[along[d]] = source.shape[d]
    rest = [d for d in range(source.ndim) if d not in kept]
    return np.transpose(source, [*order, *rest]).reshape(shape)


def check(f: Any, *args: Any) -> set[type]:
    """Asserts every record of every value of `f`; the kinds that were seen."""
    program = normalize(traced(f, *args))[0]
    facts = structure(program.jaxpr)
    env = values_of(program, jax.tree.leaves(args))
    seen: set[type] = set()
    for var, value in env.items():
        known = facts.of(var)
        seen |= {type(r) for r in known}
        if known and jnp.issubdtype(var.aval.dtype, jnp.number) | (var.aval.dtype == bool):
            assert [r for r in known if not holds(r, value, env)] == [], (var, program.jaxpr)
    return seen


X, D, T = jnp.arange(12.0).reshape(4, 3) - 5, jnp.arange(4.0) - 1, jnp.array([2, -1, 7, 0])

SPELLINGS: dict[str, tuple[Any, type]] = {
    "eye": (lambda: jnp.eye(4), Identity),
    "eye of integers": (lambda: jnp.eye(4, dtype=jnp.int8), Identity),
    "compared counters": (lambda: jnp.where(jnp.arange(4)[:, None] == jnp.arange(4), 1.0, 0.0), Identity),
    "identity that vmap repeats": (lambda: jax.vmap(lambda x: jnp.eye(4))(D), Identity),
    "tri": (lambda: jnp.tri(4), Below),
    "tril of ones": (lambda: jnp.tril(jnp.ones((4, 4)), -1), Below),
    "triu of ones, turned": (lambda: jnp.triu(jnp.ones((4, 4)), 2).T, Below),
    "a wide triangle": (lambda: jnp.tri(3, 5, 1, dtype=jnp.int8), Below),
    "counters in order": (lambda: (jnp.arange(4)[:, None] > 2 + jnp.arange(4)) * 1.0, Below),
    "one or the other": (lambda: jnp.where(jnp.arange(4) <= jnp.arange(4)[:, None], 0, 1.0), Below),
    "a triangle that vmap repeats": (lambda: jax.vmap(lambda x: jnp.triu(jnp.ones((3, 3))))(D), Below),
    "diag": (lambda: jnp.diag(D), Diagonal),
    "scaled identity": (lambda: 3 * jnp.eye(4), Diagonal),
    "identity less a number": (lambda: jnp.eye(4) - 1 / 4, Shifted),
    "identity less ones": (lambda: jnp.eye(4) - jnp.ones((4, 4)) / 4, Shifted),
    "numbers less an identity": (lambda: (2 - jnp.eye(4) * 3).T / 5, Shifted),
    "minus an identity that vmap repeats": (lambda: jax.vmap(lambda x: -(0.5 + jnp.eye(4)))(D), Shifted),
    "masked matrix": (lambda: jnp.eye(4) * jnp.outer(D, D), Diagonal),
    "one_hot": (lambda: jax.nn.one_hot(T, 3), OneHot),
    "one_hot along the first axis": (lambda: jax.nn.one_hot(T, 3, axis=0, dtype=jnp.bfloat16), OneHot),
    "one_hot by hand": (lambda: (T[:, None] == jnp.arange(3)).astype(jnp.float32), OneHot),
    "one_hot of one number": (lambda: jnp.where(jnp.arange(5) == T[0], 1.0, 0.0), OneHot),
    "one_hot under vmap": (lambda: jax.vmap(lambda t: jax.nn.one_hot(t, 3))(T), OneHot),
    "one_hot transposed": (lambda: jax.nn.one_hot(T, 3).T[None], OneHot),
    "ones": (lambda: jnp.ones((4, 3)) * 1.0, Constant),
    "broadcast row": (lambda: jnp.broadcast_to(D, (3, 4)) + 1, Repeated),
    "tiled row": (lambda: jnp.tile(D, (3, 1)), Repeated),
    "outer with ones": (lambda: jnp.outer(jnp.ones(3), D), Repeated),
    "counter": (lambda: 5 - 2 * lax.iota(jnp.int32, 4), Counted),
    "wrapped counter": (lambda: jnp.where(jnp.arange(4) < 0, jnp.arange(4) + 4, jnp.arange(4)), Counted),
    "gram": (lambda: X @ X.T, Symmetric),
    "sorted": (lambda: jnp.sort(T), Sorted),
    "outer product": (lambda: D[:, None] * X[0], Separable),
    "outer product by einsum": (lambda: jnp.einsum("i,jk->ijk", D, X), Separable),
    "kron": (lambda: jnp.kron(X, jnp.outer(D, D[:2])), Kronecker),
    "kron under vmap": (lambda: jax.vmap(jnp.kron)(X[:, :, None], X[:, None, :] * D[:3, None]), Kronecker),
    "kron by einsum": (lambda: jnp.einsum("ij,kl->ikjl", X, X[:2]).reshape(8, 9), Kronecker),
    "assumed": (lambda: assume(D + 9, "positive")[:, None], Positive),
    "assumed of matrices": (lambda: assume(X[:3] @ X[:3].T, "spd"), Said),
    "square": (lambda: jax.nn.sigmoid(jnp.sin(jnp.eye(3))) ** 2, NonNegative),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_structure_is_seen_and_so(name: str) -> None:
    """However a structured value is spelled, its record is found, and every record along the way is true."""
    f, kind = SPELLINGS[name]
    program = normalize(traced(f))[0]
    assert kind in {type(r) for r in structure(program.jaxpr).of(program.jaxpr.outvars[0])}, program.jaxpr
    check(f)


NEAR = {
    "shifted identity": lambda: jnp.eye(4, k=1),
    "wide identity": lambda: jnp.eye(3, 4),
    "fractions compared": lambda: (D[:, None] == jnp.arange(3.0)).astype(jnp.float32),
    "a wrapping counter": lambda: lax.iota(jnp.int8, 100) * jnp.int8(2),
    "outer product of matrices": lambda: (X[:, :, None, None] * X).reshape(12, 12),
    "a triangle of numbers": lambda: jnp.tril(X[:3]),
    "a steep triangle": lambda: (2 * jnp.arange(4)[:, None] >= jnp.arange(4)) * 1.0,
    "twice a triangle": lambda: 2 * jnp.tri(4),
    "identity less a row": lambda: jnp.eye(4) - D,
    "identities along other dimensions": lambda: jnp.eye(4)[None] + jnp.eye(4)[:, :, None],
    "identity over numbers": lambda: 1 / (jnp.eye(4) + 1),
    "integers that wrap": lambda: jnp.eye(4, dtype=jnp.int8) * jnp.int8(100) + jnp.int8(100),
    "rest alone": lambda: (jnp.eye(4) + 1e8) - jnp.eye(4),
    "two of three": lambda: jax.nn.one_hot(T, 3) + jax.nn.one_hot(T + 1, 3),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_are_not_taken_for_more(name: str) -> None:
    """What only looks structured gets no record that is not so."""
    program = normalize(traced(NEAR[name]))[0]
    known = structure(program.jaxpr).of(program.jaxpr.outvars[0])
    assert not {type(r) for r in known} & {Identity, Below, Shifted, OneHot, Diagonal, Constant, Counted, Kronecker}
    check(NEAR[name])


def drawn(seed: int) -> Any:
    """A random program of moves, masks and arithmetic on structured values, all of it 3 by 3 or batches of that."""
    rng = random.Random(seed)

    def f(x: Any, t: Any) -> Any:
        one, row = jnp.float32, [x, x[0][None], x[:, :1], jnp.float32(rng.choice([0, 1, -2]))]
        pool = [jnp.eye(3), jnp.diag(x[0]), jnp.ones((3, 3)), jnp.zeros((3, 3)), jax.nn.one_hot(t, 3), x, *row[1:3]]
        pool += [lax.broadcasted_iota(jnp.int32, (3, 3), d) for d in range(2)] + [
            jnp.broadcast_to(t[:, None], (3, 3)),
            x @ x.T,
        ]
        for _ in range(10):
            a, b, c = (jnp.broadcast_to(rng.choice(pool), (3, 3)) for _ in range(3))
            pool.append(
                rng.choice([
                    lambda a=a: a.T,
                    lambda a=a: -a,
                    lambda a=a, b=b: a.astype(one) * b.astype(one),
                    lambda a=a, b=b: a.astype(one) + b.astype(one),
                    lambda a=a, b=b: a.astype(one) - b.astype(one),
                    lambda a=a: a.astype(jnp.int8),
                    lambda a=a: (a * 2 + 1),
                    lambda a=a, b=b: (a == b).astype(one),
                    lambda a=a, b=b: a.astype(jnp.int32) < b.astype(jnp.int32),
                    lambda a=a, b=b, c=c: jnp.where(a != 0, b.astype(one), c.astype(one)),
                    lambda a=a, b=b: a.astype(one) @ b.astype(one),
                    lambda a=a: a.sum(0, keepdims=True),
                    lambda a=a, b=b: jnp.kron(a.astype(one), b[:1].astype(one))[:3, ::3],
                    lambda a=a: jnp.tile(a[:2], (2, 1))[:3],
                    lambda a=a, b=b: jnp.concatenate([a[:1].astype(one), b[1:].astype(one)]),
                    lambda a=a: jax.vmap(lambda v: jnp.flip(v) * v)(a),
                    lambda a=a: jnp.tanh(a.astype(one)) ** 2,
                ])()
            )  # fmt: skip
        return pool

    return f


def test_drawn_records_are_so() -> None:
    """In random programs, every record of every value is so (integers wrap, indices run out of bounds)."""
    x, t = jnp.array([[0.5, -1, 2], [0, 3, -2], [1, 1, 4.0]]), jnp.array([2, -1, 3])
    seen: set[type] = set()
    for seed in range(12):
        seen |= check(drawn(seed), x, t)
    assert seen >= {Constant, Repeated, Counted, Identity, Diagonal, OneHot, Symmetric, Sorted, NonNegative, Finite}


def test_records_of_the_corpus_are_so() -> None:
    """In programs of all kinds of primitives and types, too."""
    for seed in range(0, 30, 3):
        program = draw_program(seed)
        if "special" not in program.source:
            check(program.function(), *program.args())


def test_equal_numbers_of_other_kinds_are_told_apart() -> None:
    """-0.0 is not 0.0, nor True 1, whichever was asked for first: what is known of numbers is kept."""

    def constant(number: Any) -> Any:
        found = the(Constant, of_number(number))
        assert found is not None
        return found.value

    for number in (0.0, -0.0, 1, 1.0, True, 1 + 0j, complex(0.0, -0.0), complex(0.0, 0.0), np.float32(-0.0), 2.5, 2.5):
        found = constant(number)
        assert repr(found) == repr(np.asarray(number)[()].item())
        assert type(found) is not np.float32
        assert Finite() in of_number(number)
    assert Finite() not in of_number(math.inf)
    assert Finite() not in of_number(complex(0, math.nan))
    assert Finite() in of_number(10**400)
    assert Positive() not in of_number(math.nan)


def test_what_is_known_is_found_once_and_forgotten_with_the_program() -> None:
    """All passes that leave a level as it is share what is known of it, which does not keep it alive."""
    program = jax.make_jaxpr(lambda x: jnp.eye(3) @ x + 1)(jnp.ones((3, 3)))
    found = structure(program.jaxpr)
    assert structure(program.jaxpr) is found
    assert structure(program.jaxpr, program.jaxpr.eqns[:1]) is not found
    gone = weakref.ref(found), weakref.ref(program.jaxpr)
    del program, found
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
