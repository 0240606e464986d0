"""`stateful`: a function whose updates of variables come back as a new model."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel.module._paths import show_path
from aerogel.module._variable import Bound, Variable, is_variable, open_stores, opened

from .places import Places, check_places, refused_branches, taken_out

_jax.exclude_from_tracebacks(__file__)

M = TypeVar("M", bound=Any)  # so that the argument of a lambda is anything
R = TypeVar("R")
P = ParamSpec("P")
_calls = count()


def stateful(f: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], tuple[R, M]]:
    """A function that returns what `f` returns, and its first argument with the updates that `f` made to it.

    `f` may update the variables of its first argument (a module, or any tree of them) by `variable.set(value)`, also
    inside of `jit`, `vmap`, `scan`, `while_loop`, `cond`, `checkpoint` and `grad`, JAX's own. What comes out is a pure
    function, and can be transformed as any: `jax.grad(ag.stateful(loss), has_aux=True)` gives the gradient and the new
    model. Updates happen once each, in the order of the program; inside one call they are differentiated through.

    `f` is traced at every call, as by `jax.jit`: what it computes is not known inside.

    Raises:
        StateError: an update is not one value where it goes (it differs between the elements of a `vmap`, it would
            lose its gradient), or stands where it cannot be followed.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> class Mean(ag.Module):
    ...     mean: ag.Variable
    ...     def __call__(self, x):
    ...         self.mean.set(0.75 * self.mean + 0.25 * jax.lax.pmean(x, "batch"))
    ...         return x - self.mean
    >>> model = Mean(ag.Variable(0.0))
    >>> batched = lambda model, xs: jax.vmap(model, axis_name="batch")(xs)
    >>> out, model = ag.stateful(batched)(model, jnp.array([1.0, 3.0]))
    >>> out, float(model.mean.value)
    (Array([0.5, 2.5], dtype=float32), 0.5)
    """
    _jax.check_callable(f)

    @_jax.wraps(f)
    def run(model: M, *args: P.args, **kwargs: P.kwargs) -> tuple[R, M]:
        found, structure = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_variable)
        nodes = [node for _, node in found]
        where = [i for i, node in enumerate(nodes) if is_variable(node) and _holds_array(node)]
        initial = tuple(jnp.asarray(nodes[i].get()) for i in where)
        names = tuple(show_path(found[i][0], "model") for i in where)
        call = next(_calls)

        def body(places: Any) -> Any:
            with opened(call, Places(places, names, initial)):
                bound = [Bound(call, n, value) for n, value in enumerate(initial)]
                out = f(structure.unflatten(_with(nodes, where, bound)), *args, **kwargs)
                return jax.tree.map(_settled, out, is_leaf=is_variable)

        out, finals = _threaded(f, body, initial)
        new = [_renewed(nodes[i], value) for i, value in zip(where, finals, strict=True)]
        return out, structure.unflatten(_with(nodes, where, new))

    return run


def assign(model: M, new: M) -> None:
    """Sets every variable of `model`, in a call of `stateful`, to the value that it has in `new`.

    For models of which a function returned a changed copy: the layers of a stack, each of which a loop ran.

    Raises:
        ValueError: the two differ in structure.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> def twice(counts, x):
    ...     _, new = ag.stateful(lambda counts: counts[0].set(counts[0] + 2))(counts)
    ...     ag.assign(counts, new)
    >>> ag.stateful(twice)([ag.Variable(1)], 0.0)[1]
    [Variable(value=i32[])]
    """
    jax.tree.map(_assign_one, model, new, is_leaf=is_variable)


def _assign_one(old: Any, new: Any) -> None:
    if is_variable(old):
        old.set(new.get() if is_variable(new) else new)


def _holds_array(variable: Any) -> bool:
    return hasattr(variable.value, "dtype") and not isinstance(variable.value, jax.ShapeDtypeStruct)


def _with(nodes: list[Any], where: list[int], new: Iterable[Any]) -> list[Any]:
    replaced = dict(zip(where, new, strict=True))
    return [replaced.get(i, node) for i, node in enumerate(nodes)]


def _renewed(variable: Any, value: Any) -> Any:
    return Variable(value) if type(variable) is Bound else jax.tree.unflatten(jax.tree.structure(variable), [value])


def _settled(leaf: Any) -> Any:
    """A variable that the function returns keeps the value it has now."""
    return Variable(leaf.seen) if type(leaf) is Bound else leaf


def _threaded(f: Any, body: Callable[[Any], Any], initial: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """The result of `body`, called with places that hold `initial`, and the values that these hold at its end.

    Updates of calls further out go through it: their stores are exchanged for places of this program, so that it is
    whole when its places are taken out of it.
    """
    outer = [store for store in open_stores() if isinstance(store, Places)]
    outside = [store.places for store in outer]
    targets = [(store, i) for store in outer for i in range(len(store.places))]
    inputs = [*initial, *(store.read(i) for store, i in targets)]
    own, total = len(initial), len(inputs)

    def exchanged(*places: Any) -> Any:
        rest = iter(places[own:])
        try:
            for store, before in zip(outer, outside, strict=True):
                store.places = tuple(next(rest) for _ in before)
            return body(places[:own])
        finally:
            for store, before in zip(outer, outside, strict=True):
                store.places = before

    program, out_tree = _jax.trace_places(exchanged, f, inputs, refused_branches)
    check_places(program)
    is_written = _jax.written_places(program)
    results = _jax.evaluate(taken_out(program), inputs)
    finals = results[len(results) - total :]
    for (store, i), value, written in zip(targets, finals[own:], is_written[own:], strict=True):
        if written:
            store.write(i, value)
    return jax.tree.unflatten(out_tree, results[: len(results) - total]), finals[:own]
