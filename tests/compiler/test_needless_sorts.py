"""A sort whose order nobody needs is not made: sums, masks of ranks and single entries take its place."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.needless_sorts import NAME

N = 9000
Function = Callable[..., Any]


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers of float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def fired(f: Function, *args: Any) -> int:
    """How many sorts went."""
    return sum(d.rule == NAME for d in ag.explain(f)(*args).fired)


def sorts(f: Function, *args: Any) -> int:
    """How many sorts a program holds, in its branches too."""
    return str(jax.make_jaxpr(f)(*args)).count("sort[")


def trimmed(x: Any) -> Any:
    """The mean without a tenth at each end."""
    n = x.shape[0]
    return jnp.sort(x)[n // 10 : n - n // 10].mean()


SUMS: dict[str, Function] = {
    "a mean": lambda x: jnp.sort(x).mean(),
    "a sum of squares": lambda x: jnp.sum(jnp.sort(x) ** 2),
    "a deviation": lambda x: jnp.std(jnp.sort(x)),
    "a descending sort": lambda x: jnp.sum(jnp.sin(jnp.sort(x, descending=True))),
    "a maximum": lambda x: jnp.max(jnp.abs(jnp.sort(x))),
    "argsort": lambda x: jnp.sum(x[jnp.argsort(x)] * 3.0),
    "others in its order": lambda x: jnp.sum(jnp.cos(x)[jnp.argsort(x)] * jnp.sort(x)),
    "a product": lambda x: jnp.dot(jnp.sort(x), jnp.sin(x)[jnp.argsort(x)]),
    "a permutation": lambda x: jnp.mean(jax.random.permutation(jax.random.key(3), x)),
}
RANKS: dict[str, Function] = {
    "a range": lambda x: jnp.sort(x)[-1] - jnp.sort(x)[0],
    "both from one": lambda x: (lambda s: s[-1] - s[0])(jnp.sort(x)),
    "the second and the last but one": lambda x: (lambda s: s[-2] - s[1])(jnp.sort(x)),
    "a tail": lambda x: jnp.sort(x)[: x.shape[0] // 5].mean(),
    "the other tail": lambda x: -jnp.sort(-x)[: x.shape[0] // 5].mean(),
    "from the end": lambda x: jnp.sort(x)[::-1][: x.shape[0] // 5].mean(),
    "trimmed": trimmed,
    "a tail of others": lambda x: jnp.sum(jnp.cos(x)[jnp.argsort(x)][1000:2000]),
    "a square of a part": lambda x: jnp.sum((2 + jnp.sort(x)[1000:]) ** 2),
    "a median": jnp.median,
    "a quantile": lambda x: jnp.quantile(x, 0.3),
    "nearest": lambda x: jnp.quantile(x, 0.3, method="nearest"),
    "an entry": lambda x: jnp.sort(x)[1000],
    "an entry of others": lambda x: jnp.cos(x)[jnp.argsort(x)][1000],
    "a median of deviations": lambda x: jnp.median(jnp.abs(x - jnp.median(x))),
    "winsorised": lambda x: jnp.clip(x, jnp.quantile(x, 0.05), jnp.quantile(x, 0.95)).mean(),
}
FEW: dict[str, Function] = {
    "the largest ten": lambda x: jnp.sort(x)[-10:].mean(),
    "the smallest ten, weighted": lambda x: jnp.sort(x)[:10] @ jnp.arange(10.0, dtype=x.dtype),
    "descending": lambda x: jnp.sort(x, descending=True)[:10].mean(),
}


def inputs() -> dict[str, Any]:
    """Numbers without ties and with them, and others that a sort has rules for."""
    x = normal(0, N)
    return {
        "normal": x,
        "ties": jnp.round(x * 3),
        "zeros": jnp.zeros(N).at[3:1700:7].set(-0.0).at[9].set(1.0),
        "nan": x.at[5].set(jnp.nan).at[700].set(-jnp.nan),
        "inf": jnp.round(x).at[7:400:3].set(jnp.inf).at[6:800:3].set(-jnp.inf),
    }


def without_places(f: Function) -> Function:
    """`f`, of whose arrays it does not matter what stands where if JAX leaves that open.

    Since 0.12 it does for a gradient of `jnp.quantile` and `jnp.median`: which of equal numbers comes first.
    """
    return (
        f if jax.__version_info__ < (0, 12) else lambda *args: jax.tree.map(jnp.sort, jax.tree.map(jnp.ravel, f(*args)))
    )


def agree(f: Function, *args: Any, exact: bool = False) -> None:
    """What is written computes what the natural form computes, and its gradient is where that has it."""
    got, want = jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if exact or a.dtype.kind in "iub":
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        else:
            tolerance = 2e-2 if a.dtype.itemsize < 4 else 1e-5
            a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b[np.isfinite(b)]).max(initial=0))


@pytest.mark.parametrize("name", [*SUMS, *RANKS])
def test_no_sort_is_left(name: str) -> None:
    """Of the value, and of the gradient that JAX built; the numbers are those of the natural form."""
    f = {**SUMS, **RANKS}[name]

    def gradient(x: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sum(f(x)))(x)

    for g in (f, gradient):
        assert sorts(g, normal(0, N)) > 0
        assert sorts(ag.optimize(g), normal(0, N)) == 0
        agree(g, normal(0, N))


@pytest.mark.parametrize("kind", inputs())
@pytest.mark.parametrize(
    "name", ["a mean", "both from one", "a tail", "trimmed", "a median", "an entry", "an entry of others"]
)
def test_what_a_sort_has_rules_for(name: str, kind: str) -> None:
    """Of ties the gradient goes where a stable sort takes the entry from; -0 is 0's equal, and nan comes last."""
    f = {**SUMS, **RANKS}[name]
    agree(f, inputs()[kind])
    agree(without_places(jax.grad(f)), inputs()[kind])


def test_ranks_that_are_not_known() -> None:
    """Of the two entries beside a quantile one is searched, and the other is the next one, or the same."""

    def f(x: Any, q: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sum(jnp.quantile(x, q) ** 2))(x)

    x, q = normal(0, 90_000), jnp.array([0.25, 1.0])
    assert fired(f, x, q) == 1
    assert sorts(ag.optimize(f), x, q) == 0
    agree(f, x, q)
    agree(without_places(f), jnp.round(x), q)


def test_a_rank_that_is_an_argument() -> None:
    """From the front, and from the end, where the order is the other way round."""
    x = jnp.round(normal(0, N) * 50)
    for f in (lambda x, k: jnp.sort(x)[k], lambda x, k: jnp.sort(x)[::-1][k], lambda x, k: jnp.argsort(-x)[::-1][k]):
        for k in (0, 17, N // 2, N - 1, -3):
            agree(f, x, jnp.int32(k), exact=True)
    assert fired(lambda x, k: jnp.sort(x)[k], x, jnp.int32(3)) == 1


@pytest.mark.parametrize("kind", inputs())
def test_an_entry_is_bit_for_bit_what_a_sort_puts_there(kind: str) -> None:
    """The sign of a zero, and the bits of a nan."""

    def entries(x: Any) -> Any:
        s = jnp.sort(x)
        return lax.bitcast_convert_type(jnp.stack([s[0], s[1], s[2000], s[-1]]), jnp.int32)

    assert fired(entries, inputs()[kind]) == 1
    agree(entries, inputs()[kind], exact=True)


@pytest.mark.parametrize("name", FEW)
def test_the_ends_are_selected(name: str) -> None:
    """Their gradient needs the places alone; a sort is left for nan and -0."""
    f = FEW[name]
    for kind in inputs():
        agree(jax.value_and_grad(f), inputs()[kind])
    assert fired(jax.value_and_grad(f), normal(0, N)) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8", "int8", "uint32", "bool"])
def test_other_types(dtype: str) -> None:
    """Keys of 8, 16 and 32 bits."""
    x = jnp.asarray(np.random.default_rng(1).integers(-90, 90, N) * 7).astype(dtype)

    def f(x: Any) -> Any:
        s = jnp.sort(x)
        return s[0], s[-1], s[1000]

    assert fired(f, x) == 1
    agree(f, x, exact=True)


ROWS: dict[str, Function] = {
    "sums of rows": lambda x: jnp.sort(x, 1).sum(1),
    "sums of all": lambda x: jnp.sum(jnp.sin(jnp.sort(x, 0))),
    "medians of rows": lambda x: jnp.median(x, 1),
    "medians of columns": lambda x: jnp.median(x, 0),
    "under vmap": jax.vmap(jnp.median, 1),
    "ranges": lambda x: jnp.sort(x, 0)[-1] - jnp.sort(x, 0)[0],
    "tails": lambda x: jnp.sort(x, 1)[:, :10].mean(1),
    "an entry kept as a column": lambda x: jnp.sort(x, -1)[:, 30:31] * x,
    "by argsort": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1).sum(1),
    "weights of rows": lambda x: jnp.sum(jnp.sort(x, 1) * x[:, :1]),
    "rows in the order of a column": lambda x: jnp.sum(jnp.tanh(x[jnp.argsort(x[:, 0])])),
    "a product of them": lambda x: x[jnp.argsort(x[:, 0])].T @ x[jnp.argsort(x[:, 0])],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    """Each row has an order of its own."""
    f, x = ROWS[name], normal(2, 100, 90)
    for g in (f, jax.grad(lambda x: jnp.sum(f(x) ** 2))):
        assert fired(g, x) >= 1
        assert sorts(ag.optimize(g), x) == 0
        agree(g, x)
        agree(g, jnp.round(x))


STAYS: dict[str, Function] = {
    "its order is weighted": lambda x: jnp.sum(jnp.sort(x) * jnp.arange(N)),
    "it is returned": lambda x: (jnp.sort(x), jnp.sort(x).sum()),
    "two orders meet": lambda x: jnp.sum(jnp.abs(jnp.sort(x) - jnp.sort(jnp.cos(x)))),
    "a running sum": lambda x: jnp.sum(jnp.cumsum(jnp.sort(x)) ** 2),
    "others as they stand": lambda x: jnp.sum(jnp.sort(x) * x),
    "a stride": lambda x: jnp.sort(x)[::2].sum(),
    "many entries": lambda x: sum(jnp.sort(x)[k] for k in range(500, 4000, 500)),
    "rows are summed over others": lambda x: jnp.sum(jnp.sort(x.reshape(100, 90), 1).mean(0) ** 2),
    "rows meet in a product": lambda x: jnp.sum(jnp.sort(x.reshape(100, 90), 1) @ jnp.sort(x.reshape(100, 90), 1).T),
    "few": lambda x: jnp.median(x[:4000]),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_stays(name: str) -> None:
    """Where the order matters, or a search for ranks takes as long."""
    f = STAYS[name]
    assert sorts(f, normal(0, N)) > 0
    assert fired(f, normal(0, N)) == 0
    agree(f, normal(0, N))


@pytest.mark.parametrize("shape", [(0,), (1,), (0, 5), (5, 0), (5, 1)])
def test_nothing_to_sort(shape: tuple[int, ...]) -> None:
    """Arrays without entries, and with one."""
    for f in (lambda x: jnp.sort(x).sum(), lambda x: jax.grad(lambda x: jnp.sort(x).sum())(x)):
        agree(f, normal(0, *shape))


def test_in_a_loop() -> None:
    """A step of a loop is a level like any other."""

    def f(x: Any) -> Any:
        return lax.scan(lambda c, _: (c - 0.1 * jax.grad(jnp.median)(c) + jnp.sort(c).mean(), None), x, None, length=3)[
            0
        ]

    assert fired(f, normal(0, N)) >= 1
    assert sorts(ag.optimize(f), normal(0, N)) == 0
    agree(f, normal(0, N))


def test_the_gradient_inside() -> None:
    """A sum is written before the derivative is taken; ranks wait until it is."""

    def f(x: Any) -> Any:
        def loss(x: Any) -> Any:
            return jnp.sort(x).mean() * jnp.median(x)

        return ag.grad(loss)(x)

    assert sorts(ag.optimize(f), normal(0, N)) == 0
    agree(f, normal(0, N))
