"""`stateful`: a function whose updates of variables come back as a new model."""

from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel.module._errors import StateError
from aerogel.module._paths import show_path
from aerogel.module._variable import Bound, Variable, is_variable, open_stores, opened

_jax.exclude_from_tracebacks(__file__)

_calls = count()


def _refusal(name: str, transform: str) -> StateError:
    if transform == "vmap":
        return StateError(
            what="under `vmap`, what a variable is set to must be one value for all elements.",
            place=name,
            to_fix="take it over the mapped axis, jax.lax.pmean(value, axis_name); or map over ag.stateful(f)",
        )
    return StateError(
        what="a value with a gradient cannot leave the function that `jax.grad` differentiates.",
        place=name,
        to_fix="set it to jax.lax.stop_gradient(value); or jax.grad(ag.stateful(f), has_aux=True)",
    )


_read, _write = _jax.place_primitives(_refusal)


class _Places:
    """The store of a call that is traced: places, that the program reads and writes."""

    def __init__(self, places: Any, names: tuple[str, ...], initial: tuple[Any, ...]) -> None:
        self.places = tuple(places)
        self.names = names
        self.initial = initial

    def read(self, index: int) -> Any:
        return _read.bind(self.places[index], name=self.names[index])

    def write(self, index: int, value: Any) -> None:
        _write.bind(self.places[index], value, name=self.names[index])


def stateful(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns what `f` returns, and its first argument with the updates that `f` made to it.

    `f` may update the variables of its first argument (a module, or any tree of them) by `variable.set(value)`, under
    `jit`, `vmap`, `scan`, `while_loop`, `cond`, `checkpoint` and `grad` of JAX's own. What comes out is a pure
    function, for all transformations; `jax.grad(ag.stateful(loss), has_aux=True)` gives the new model beside the
    gradient. Updates happen once, in the order of the program.

    `f` is traced at every call, as by `jax.jit`: its values are not known inside.

    Raises:
        StateError: an update would not be one value where it goes: see `Variable.set`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> class Mean(ag.Module):
    ...     mean: ag.Variable
    ...     def __call__(self, x):
    ...         self.mean.set(0.9 * self.mean + 0.1 * jax.lax.pmean(x, "batch"))
    ...         return x - self.mean
    >>> model = Mean(ag.Variable(jnp.zeros(())))
    >>> batch = lambda model, xs: jax.vmap(model, axis_name="batch")(xs)
    >>> out, model = ag.stateful(batch)(model, jnp.array([1.0, 3.0]))
    >>> round(float(model.mean.value), 3)
    0.2
    """
    _jax.check_callable(f)

    @_jax.wraps(f)
    def run(model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        found, structure = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_variable)
        paths, nodes = [path for path, _ in found], [node for _, node in found]
        where = [i for i, node in enumerate(nodes) if is_variable(node) and hasattr(node.value, "dtype")]
        initial = tuple(jax.lax.stop_gradient(jnp.asarray(nodes[i].get())) for i in where)
        names = tuple(show_path(paths[i], "model") for i in where)
        call = next(_calls)

        def body(places: Any) -> Any:
            with opened(call, _Places(places, names, initial)):
                bound = [Bound(call, n, value) for n, value in enumerate(initial)]
                out = f(structure.unflatten(_placed(nodes, where, bound)), *args, **kwargs)
                return jax.tree.map(_settled, out, is_leaf=is_variable)

        out, finals = _threaded(body, initial)
        values = [_with_value(nodes[i], value) for i, value in zip(where, finals, strict=True)]
        return out, structure.unflatten(_placed(nodes, where, values))

    return run


def _placed(nodes: list[Any], where: list[int], new: list[Any]) -> list[Any]:
    nodes = list(nodes)
    for i, node in zip(where, new, strict=True):
        nodes[i] = node
    return nodes


def _with_value(variable: Any, value: Any) -> Any:
    return Variable(value) if type(variable) is Bound else jax.tree.unflatten(jax.tree.structure(variable), [value])


def _settled(leaf: Any) -> Any:
    """A variable that the function returns keeps the value it has now."""
    return Variable(jax.tree.leaves(leaf)[0]) if type(leaf) is Bound else leaf


def _threaded(body: Callable[[Any], Any], initial: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """The result of `body`, called with places that hold `initial`, and the values that these hold at its end.

    Updates of calls further out go through it: their stores are exchanged for places of this program, so that it is
    whole when its places are taken out of it.
    """
    outer = [store for store in open_stores() if isinstance(store, _Places)]
    saved = [store.places for store in outer]
    inputs = [*initial, *(store.read(i) for store in outer for i in range(len(store.places)))]
    out_tree: Any = None

    def flat(*places: Any) -> list[Any]:
        nonlocal out_tree
        rest = iter(places[len(initial) :])
        try:
            for store, before in zip(outer, saved, strict=True):
                store.places = tuple(next(rest) for _ in before)
            leaves, out_tree = _jax.flatten(body(places[: len(initial)]))
        finally:
            for store, before in zip(outer, saved, strict=True):
                store.places = before
        return leaves

    types = [_jax.place_type(_jax.shaped_abstractify(value)) for value in inputs]
    program = _jax.trace_flat(flat, _jax.argument_names(flat, tuple(inputs), {}, [True] * len(inputs)), types)
    is_written = _jax.written_places(program)
    results = _jax.evaluate(_jax.without_places(program), inputs)
    finals = results[len(results) - len(inputs) :]
    targets = [(store, i) for store in outer for i in range(len(store.places))]
    for (store, i), value, written in zip(
        targets, finals[len(initial) :], is_written[len(initial) :], strict=True
    ):
        if written:
            store.write(i, value)
    return jax.tree.unflatten(out_tree, results[: len(results) - len(inputs)]), finals[: len(initial)]
