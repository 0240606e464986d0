"""The patterns that loop fusion must recover, as JAX users write them, and what they stand in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Literal, jaxprs_in_params

LENGTH, ROWS, COLUMNS = 64, 8, 2048
# States and logits of the language models: the logits of all steps are 4 MiB.
BATCH, HIDDEN, VOCABULARY = 4, 16, 4096
# For results: the judge runs a program several times at float64, so its arrays are smaller.
SMALL_STATE = (8, 1024)


@dataclass(frozen=True)
class Pattern:
    """One program.

    Attributes:
        run: `run(x0, xs, extra, reverse)`; `xs` is None for a loop without inputs. Returns a small result.
        extra: makes the third argument from the shape of the state, as NumPy arrays.
        size: elements of the smallest array that must not exist.
    """

    name: str
    run: Callable[..., Any]
    extra: Callable[..., Any] = lambda *state: ()
    size: int = LENGTH * ROWS * COLUMNS
    state: tuple[int, ...] = (ROWS, COLUMNS)

    def args(self, with_xs: bool, state: tuple[int, ...] = ()) -> tuple[Any, ...]:
        """Arguments of order one, float32; `state` may be another shape than the pattern's."""
        state = state or self.state
        xs = normal(1, LENGTH, *state) if with_xs else None
        return normal(0, *state), xs, self.extra(*state)

    def function(self, reverse: bool) -> Callable[..., Any]:
        """`f(x0, xs, extra)`."""

        def f(x0: Any, xs: Any, extra: Any) -> Any:
            return self.run(x0, xs, extra, reverse)

        f.__name__ = self.name.replace(" ", "_")
        return f


def normal(seed: int, *shape: int) -> np.ndarray:
    """Standard normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def step(c: Any, x: Any) -> Any:
    """A state that moves on, element by element.

    Slowly: 64 equal summands would be rounded the same way each time, which says little about sums.
    """
    c = 0.98 * c + 0.05 * jnp.cos(c)
    return c if x is None else c + 0.1 * x


def outputs(x0: Any, xs: Any, reverse: bool) -> Any:
    """All states, stacked."""

    def body(c: Any, x: Any) -> Any:
        c = step(c, x)
        return c, c

    return lax.scan(body, x0, xs, length=LENGTH, reverse=reverse)[1]


def of_outputs(consume: Callable[..., Any]) -> Callable[..., Any]:
    """A loop, then `consume(ys, extra)`."""
    return lambda x0, xs, extra, reverse: consume(outputs(x0, xs, reverse), extra)


def target(*state: int) -> np.ndarray:
    """Something to compare all outputs with."""
    return normal(2, LENGTH, *state)


def weights(*state: int) -> np.ndarray:
    """A number for each step."""
    return normal(3, LENGTH)


def second_loop(x0: Any, xs: Any, extra: Any, reverse: bool) -> Any:
    """A loop over the outputs of another."""
    ys = outputs(x0, xs, reverse)
    return lax.scan(lambda c, y: (0.5 * c + jnp.sin(y), None), jnp.zeros_like(x0), ys, reverse=reverse)[0]


def one_returned(x0: Any, xs: Any, extra: Any, reverse: bool) -> Any:
    """Of two outputs one is returned (a number for each step), one is reduced."""

    def body(c: Any, x: Any) -> Any:
        c = step(c, x)
        return c, (c, c[:, 0].sum())

    ys, small = lax.scan(body, x0, xs, length=LENGTH, reverse=reverse)[1]
    return ys.sum(0), small


def mapped(x0: Any, xs: Any, extra: Any, reverse: bool) -> Any:
    """`lax.map` and a sum; the order of its steps is its own."""
    times = jnp.arange(LENGTH, dtype=x0.dtype)
    if xs is None:
        return lax.map(lambda t: jnp.cos(x0 + 0.1 * t) * x0, times).sum(0)
    return lax.map(lambda x: jnp.cos(x) * x0, xs).sum(0)


def filled(x0: Any, xs: Any, extra: Any, reverse: bool) -> Any:
    """`fori_loop` that fills a buffer, then a sum of squares over it."""

    def body(i: Any, carry: Any) -> Any:
        c, buffer = carry
        i = LENGTH - 1 - i if reverse else i
        c = step(c, None if xs is None else xs[i])
        return c, buffer.at[i].set(c)

    buffer = jnp.zeros((LENGTH, *x0.shape), x0.dtype)
    return (lax.fori_loop(0, LENGTH, body, (x0, buffer))[1] ** 2).sum(0)


def variance_around(ys: Any, extra: Any) -> Any:
    """The variance over time with its mean written out."""
    mean = ys.mean(0)
    return ((ys - mean) ** 2).mean(0)


REDUCED = [
    Pattern("sum", of_outputs(lambda ys, _: ys.sum(0))),
    Pattern("sum of all", of_outputs(lambda ys, _: jnp.sum(ys))),
    Pattern("mean", of_outputs(lambda ys, _: ys.mean(0))),
    Pattern("mean over time and columns", of_outputs(lambda ys, _: ys.mean((0, 2)))),
    Pattern("mean over columns", of_outputs(lambda ys, _: ys.mean(2))),
    Pattern("mean squared error", of_outputs(lambda ys, t: jnp.mean((ys - t) ** 2)), target),
    Pattern("max", of_outputs(lambda ys, _: ys.max(0))),
    Pattern("min of all", of_outputs(lambda ys, _: ys.min())),
    Pattern("logsumexp", of_outputs(lambda ys, _: jax.nn.logsumexp(ys, axis=0))),
    Pattern("logsumexp of all", of_outputs(lambda ys, _: jax.nn.logsumexp(ys))),
    Pattern("variance", of_outputs(lambda ys, _: ys.var(0))),
    Pattern("variance written out", of_outputs(variance_around)),
    Pattern("standard deviation of all", of_outputs(lambda ys, _: ys.std())),
    Pattern("weighted sum", of_outputs(lambda ys, w: (ys * w[:, None, None]).sum(0)), weights),
    Pattern("tensordot", of_outputs(lambda ys, w: jnp.tensordot(w, ys, 1)), weights),
    Pattern("einsum", of_outputs(lambda ys, t: jnp.einsum("trc,trc->r", ys, t)), target),
    Pattern("einsum of two", of_outputs(lambda ys, w: jnp.einsum("t,trc->rc", w, ys)), weights),
    Pattern("last", of_outputs(lambda ys, _: ys[-1])),
    Pattern("last three", of_outputs(lambda ys, _: ys[-3:])),
    Pattern("every eighth", of_outputs(lambda ys, _: ys[::8])),
    Pattern("every eighth but the first", of_outputs(lambda ys, _: ys[5::8])),
    Pattern("two reductions", of_outputs(lambda ys, _: (ys.sum(0), (ys**2).mean((1, 2))))),
    Pattern("mean and variance", of_outputs(lambda ys, _: (ys.mean(0), ys.var(0)))),
    Pattern("one returned", one_returned),
    Pattern("second loop", second_loop),
    Pattern("lax.map", mapped),
    Pattern("filled buffer", filled),
]
# No derivative, or none with respect to a float.
INTEGER = [Pattern("argmax", of_outputs(lambda ys, _: jnp.argmax(ys, 0)))]


def _integer_labels(logits: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.mean()


def _one_hot_labels(logits: Any, labels: Any) -> Any:
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, logits.shape[-1])).sum(-1).mean()


def _by_logsumexp(logits: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def _optax_integers(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _optax_one_hot(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1])).mean()


def _head(loss: Callable[..., Any], batch_major: bool = False) -> Callable[..., Any]:
    def run(x0: Any, xs: Any, extra: Any, reverse: bool) -> Any:
        w, labels = extra
        states = outputs(x0, xs, reverse)
        if batch_major:
            states, labels = jnp.swapaxes(states, 0, 1), labels.T
        return loss(states @ w, labels)

    return run


def head(batch: int, hidden: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the output layer, and a label for each step and sequence."""
    labels = np.random.default_rng(5).integers(0, VOCABULARY, (LENGTH, batch)).astype(np.int32)
    return normal(4, hidden, VOCABULARY), labels


def _language_model(name: str, loss: Callable[..., Any], batch_major: bool = False) -> Pattern:
    size = LENGTH * BATCH * VOCABULARY
    return Pattern(name, _head(loss, batch_major), head, size, (BATCH, HIDDEN))


LANGUAGE = [
    _language_model("log_softmax, labels picked", _integer_labels),
    _language_model("log_softmax, one-hot labels", _one_hot_labels),
    _language_model("logsumexp less the label's", _by_logsumexp),
    _language_model("optax, integer labels", _optax_integers),
    _language_model("optax, one-hot labels", _optax_one_hot),
    _language_model("batch-major", _integer_labels, batch_major=True),
    _language_model("optax, batch-major", _optax_integers, batch_major=True),
]
PATTERNS = [*REDUCED, *INTEGER, *LANGUAGE]


# --- what they stand in ------------------------------------------------------------------------------------------


def scalar(out: Any) -> Any:
    """A number that depends on every float of a result; a number as it is."""
    if isinstance(out, jax.Array) and out.ndim == 0:
        return out
    leaves = [leaf for leaf in jax.tree.leaves(out) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return sum((jnp.mean(0.5 * leaf * leaf + leaf) for leaf in leaves), jnp.zeros(()))


def with_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradient with respect to the first argument."""
    return jax.value_and_grad(lambda x0, *rest: scalar(f(x0, *rest)))


def plain(f: Callable[..., Any]) -> Callable[..., Any]:
    """As it is."""
    return f


def in_vmap(f: Callable[..., Any]) -> Callable[..., Any]:
    """Two of them side by side, with states and inputs of their own."""
    return lambda x0, xs, extra: jax.vmap(f, (0, None, None))(jnp.stack([x0, 0.5 * x0]), xs, extra)


def in_cond(f: Callable[..., Any]) -> Callable[..., Any]:
    """In one branch."""

    def other(*args: Any) -> Any:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(f, *args))

    return lambda x0, xs, extra: lax.cond(x0[0, 0] > -100, f, other, x0, xs, extra)


def in_scan(f: Callable[..., Any]) -> Callable[..., Any]:
    """In the step of another loop, whose outputs are returned."""
    return lambda x0, xs, extra: lax.scan(lambda c, _: (0.5 * c, f(c, xs, extra)), x0, None, length=2)


def in_jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """In a jitted function that is called twice, and therefore stays a function."""
    inner = jax.jit(f)
    return lambda x0, xs, extra: (inner(x0, xs, extra), inner(0.5 * x0, xs, extra))


SURROUNDINGS = {"plain": plain, "vmap": in_vmap, "cond": in_cond, "scan": in_scan, "jit": in_jit}


# A buffer that goes through these is the same array afterwards: XLA updates it in place.
IN_PLACE = ("scan", "while", "dynamic_update_slice", "jit")


def made(jaxpr: Jaxpr, size: int) -> list[tuple[int, ...]]:
    """Shapes of all values of at least `size` elements that equations make, those in bodies and branches too.

    What a loop carries was made before it or is made in its body; an update in place makes nothing.
    """
    found: list[tuple[int, ...]] = []
    for eqn in jaxpr.eqns:
        new = eqn.outvars
        if eqn.primitive.name in IN_PLACE:
            new = eqn.outvars[len(_carried(eqn)[0]) :] if eqn.primitive.name in ("scan", "while") else ()
        found += [v.aval.shape for v in new if getattr(v.aval, "size", 0) >= size]
        for inner in jaxprs_in_params(eqn.params):
            found += made(getattr(inner, "jaxpr", inner), size)
    return found


def stacked(jaxpr: Jaxpr, size: int) -> list[tuple[int, ...]]:
    """Shapes of what loops stack or carry and that has at least `size` elements: XLA always makes those.

    A buffer that goes from one loop to the next, or into a loop in a step, is one array.
    """
    found: list[tuple[int, ...]] = []
    passed_on = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("scan", "while"):
            carries, init = _carried(eqn)
            new = [v for v, x in zip(carries, init, strict=True) if isinstance(x, Literal) or x not in passed_on]
            found += [v.aval.shape for v in (*new, *eqn.outvars[len(carries) :]) if v.aval.size >= size]
        if eqn.primitive.name in IN_PLACE:
            passed_on.update(eqn.outvars)
        for inner in jaxprs_in_params(eqn.params):
            found += stacked(getattr(inner, "jaxpr", inner), size)
    return found


def _carried(eqn: JaxprEqn) -> tuple[list[Any], list[Any]]:
    """The results of a loop that it carries, and what they are at the start."""
    if eqn.primitive.name == "while":
        return eqn.outvars, eqn.invars[eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] :]
    first, count = _jax.scan_counts(eqn.params)
    return eqn.outvars[:count], eqn.invars[first : first + count]
