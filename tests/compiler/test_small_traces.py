"""A small function is traced once for what it closes over, the types it is used at, and the settings of JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel._jax import JaxprEqn, ShapedArray
from aerogel.compiler.axes.monoid import ADD, MAX
from aerogel.compiler.orders.reorder import reorder
from aerogel.compiler.small_traces import plain_key, traced


@dataclass(frozen=True)
class Frozen:
    """Plain data."""

    size: int


@dataclass
class Loose:
    """Data that may change under the key."""

    size: int


def equation() -> JaxprEqn:
    """Some equation."""
    return jax.make_jaxpr(jnp.sin)(1.0).jaxpr.eqns[0]


def ours(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` as if the compiler had written it."""
    f.__module__ = "aerogel.compiler.somewhere"
    return f


def turn(order: Any) -> Callable[..., Any]:
    """A function that closes over `order`."""
    return ours(lambda x: lax.transpose(x, order))


MATRIX = ShapedArray((2, 3), np.dtype("float32"))


def test_the_same_function_is_traced_once() -> None:
    """Two closures over equal plain data at equal types have one program; other data or types another one."""
    like = equation()
    first = traced(turn((1, 0)), [MATRIX], like)
    assert traced(turn((1, 0)), [MATRIX], like) is first
    assert [eqn.primitive.name for eqn in first.jaxpr.eqns] == ["transpose"]
    assert traced(turn((0, 1)), [MATRIX], like) is not first
    assert traced(turn((1, 0)), [MATRIX.update(weak_type=True)], like) is not first
    assert traced(turn((1, 0)), [MATRIX.update(dtype=np.dtype("int32"))], like) is not first


def test_settings_that_tracing_looks_at_count() -> None:
    """The precision of products comes from a setting: each value of it has its own program."""
    like = equation()
    product = ours(lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ()))))
    plain = traced(product, [MATRIX], like)
    with jax.default_matmul_precision("highest"):
        highest = traced(product, [MATRIX], like)
    assert plain.jaxpr.eqns[0].params["precision"] != highest.jaxpr.eqns[0].params["precision"]


EQUAL_BUT_DIFFERENT = [(0, False), (0, 0.0), (0.0, -0.0), (1, np.int32(1)), (np.float32(0), np.float32(-0.0)),
                       (np.int32(1), np.int64(1)), ((1, 2), [1, 2]), ((1, (2,)), (1, (2.0,)))]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), EQUAL_BUT_DIFFERENT)
def test_what_python_calls_equal_is_told_apart(a: Any, b: Any) -> None:
    """0 == 0.0 == -0.0 == False, but a program that holds one of them is another one."""
    assert plain_key(a) is not None
    assert plain_key(b) is not None
    assert plain_key(a) != plain_key(b)


def test_plain_data_has_a_key() -> None:
    """Numbers, types, monoids and functions over them."""
    for x in (3, "a", None, np.float32(2), np.dtype("int8"), np.int32, MATRIX, Frozen(3), ADD, turn((1, 0))):
        assert plain_key(x) == plain_key(x) is not None
    assert plain_key(Frozen(3)) != plain_key(Frozen(4))
    assert plain_key(ADD) != plain_key(MAX)
    assert plain_key(partial(turn((1, 0)), 3)) != plain_key(partial(turn((1, 0)), 4))
    assert plain_key(partial(turn((1, 0)), a=3)) != plain_key(partial(turn((1, 0)), b=3))


@pytest.mark.parametrize("x", [jnp.ones(2), np.ones(2), Loose(3), {"a": 1}, equation(), object(), reorder])
def test_everything_else_is_traced_each_time(x: Any) -> None:
    """Arrays, mutable data, equations: no key. A function of ours without a closure has one."""
    key = plain_key(turn(x))
    assert (key is None) == (x is not reorder)


def test_functions_of_others_are_traced_each_time() -> None:
    """A user's function reads globals of the user's, which may change."""
    scale = 2.0
    assert plain_key(lambda x: x * scale) is None
