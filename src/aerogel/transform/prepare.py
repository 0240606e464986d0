"""`prepare`: a function compiled ahead for certain arguments, whose results may take the memory of earlier ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from aerogel import _jax
from aerogel.module._paths import show_path

from ._donation import types_of
from ._errors import ArgumentsError, MemoryTakenError
from ._static import is_static
from .grad import gradient_of
from .jit import after_the_first, as_function, jit, made_by, with_donated, with_first
from .prepared_cost import PreparedCost, cost_of
from .recompiles import Record, parts_of
from .schedules import compiled_to_hold_less
from .stages import way_to

_jax.exclude_from_tracebacks(__file__)

P = ParamSpec("P")
R = TypeVar("R")


def prepare(f: Callable[P, R], /, *args: Any, **kwargs: Any) -> "Prepared[R]":
    """`f` compiled for arguments like these: no later call traces or compiles anything.

    A call takes what the arguments here are like, and costs what a call of `jax.jit` costs. With `out=` the result is
    written where an earlier one was, which ends that: a large gradient that is computed again and again then takes no
    fresh memory from the system. What holds a megabyte or more is compiled for two orders of its operations on a CPU,
    and the one is kept that holds less.

    Args:
        f: any function, such as `ag.value_and_grad(loss)`, or what `ag.jit` made of one: then with its options. It is
            optimised as by `ag.jit`.
        args: what it will be called with, or `jax.ShapeDtypeStruct`s in the place of arrays.
        kwargs: the same by name.

    Raises:
        TypeError: `f` is not callable; what `f` raises while it is traced.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> def loss(w, x):
    ...     return ((w * x) ** 2).sum()
    >>> w, x = jnp.ones(3), jnp.arange(3.0)
    >>> prepared = ag.prepare(ag.value_and_grad(loss), w, x)
    >>> value, grads = prepared(w, x)
    >>> value, grads = prepared(2 * w, x, out=grads)
    >>> print(value, grads)
    20.0 [ 0.  4. 16.]
    """
    return Prepared(f if made_by(f)[1] else jit(f), args, kwargs)


class Prepared(Generic[R]):
    """A function that `prepare` compiled. It is called with arguments of the same structure, shapes and dtypes.

    As with `jax.jit(f).lower(...).compile()`, arguments that `ag.jit` was told are static are left out of a call, and
    it cannot be differentiated or mapped.
    """

    def __init__(self, jitted: Any, args: Any, kwargs: Any) -> None:
        natural, self._options = made_by(jitted)
        holder, self._function = as_function(natural)
        self._first = () if holder is None else (holder,)
        self._given = args, kwargs
        self._way = way_to(natural, self._first, _jax.static_arguments(_jax.original_jit(self._function)), args, kwargs)
        self._traced = jitted.trace(*args, **kwargs)
        self._fresh, self._order = compiled_to_hold_less(self._traced.lower(), self._options.get("compiler_options"))
        self._gradient = gradient_of(natural)
        self._parts = self._what_can_be_taken(self._fresh.out_info)
        self._taking: Any = self._compiled_to_take(self._parts[0]) if self._parts else self._fresh
        self._others: dict[Any, Any] = {}

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> R:
        """What `f` returns for these arguments.

        Args:
            args: like those that it was prepared for.
            out: an earlier result or an element of it, such as the gradient of a value and a gradient, whose arrays
                give their memory to the new result and cannot be used again. The gradient was compiled for, and where
                there is none the result; another element is at its first use. What `donate` of `ag.jit` finds is
                not donated then.
            kwargs: like those that it was prepared for. An `out` of `f`'s own is passed by position.

        Raises:
            ArgumentsError: an argument has another structure, shape or dtype than it was prepared for, or `out`
                another one than the result.
            MemoryTakenError: an array was `out` of an earlier call, or is `out` and an argument at once.
        """
        try:
            if out is None:
                return self._fresh(*args, **kwargs)
            return self._taking(out, *self._first, *args, **kwargs)
        except (TypeError, ValueError, RuntimeError) as error:
            return self._after(error, out, args, kwargs)

    @cached_property
    def cost(self) -> PreparedCost:
        """What a call costs, and for a gradient that `ag.grad` or `ag.value_and_grad` made, how much more than `f`.

        It is found when it is first asked for; `f` alone is compiled for it.
        """
        own = cost_of(self._traced, self._fresh)
        if self._gradient is None:
            return own
        # What is donated, and where the results lie, fits the gradient.
        kept = {k: v for k, v in self._options.items() if k != "out_shardings" and not k.startswith("donate")}
        args, kwargs = self._given
        traced = jit(self._gradient.of, **kept).trace(*args, **kwargs)
        compiled, _ = compiled_to_hold_less(traced.lower(), kept.get("compiler_options"))
        return replace(own, value=cost_of(traced, compiled))

    def __repr__(self) -> str:
        return f"Prepared({self._way.function})"

    def _what_can_be_taken(self, result: Any) -> list[Any]:
        """Types of the gradient if there is one, of the result, and of its elements, as far as they hold arrays."""
        place = None if self._gradient is None else self._gradient.place
        elements = list(result) if isinstance(result, tuple) else []
        parts = [result, *elements] if place is None else [elements.pop(place), result, *elements]
        return [jax.tree.map(_type, part) for part in parts if types_of(part) is not None]

    def _compiled_to_take(self, part: Any) -> Any:
        """The compiled function whose first argument gives its memory to the result."""
        function = self._function

        def taking(out: Any, /, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        options = self._options
        for _ in ("out", *self._first):
            options = after_the_first(options)
        # `out` stands for what `donate` finds. Nothing reads it, and JAX would leave it out.
        options = {**with_donated(options, ((0,), ())), "donate": "none", "keep_unused": True}
        args, kwargs = self._given
        made = jit(with_first("out", taking, function), **options)
        return made.lower(part, *self._first, *args, **kwargs).compile(compiler_options=self._order)

    def _after(self, error: Exception, out: Any, args: Any, kwargs: Any) -> Any:
        """What a call comes to that failed: the result of another program, or an error that says more.

        Raises:
            ArgumentsError: it was given something else than it was prepared for.
            MemoryTakenError: an array is not there any more.
        """
        other = self._taking_another(out)
        if other is not None:
            return other(out, *self._first, *args, **kwargs)
        name = self._way.function
        known, given = self._way.record.parts, self._way.named(args, kwargs)
        if out is not None:
            known = {**known, **dict(parts_of({"out": self._parts[0] if self._parts else None}))}
            given = {**given, "out": out}
        gone = _gone(given) if any(word in str(error) for word in ("deleted", "donated")) else []
        if gone:
            raise MemoryTakenError(
                what=f"the memory of an array that `{name}` was given is taken.",
                place=f"a call of the prepared `{name}`",
                got="\n".join(gone),
                to_fix="use the newest result: what is given as `out` is gone, the result stands where it was",
            ) from None
        changes = Record(known, None, 0).changes_to(Record(dict(parts_of(given)), None, 0))
        if changes and isinstance(error, TypeError | ValueError):
            raise ArgumentsError(function=name, changes="\n".join(changes)) from None
        raise error

    def _taking_another(self, out: Any) -> Any:
        """The program that takes the memory of this part of the result; None where that is the first, or no part."""
        wanted = types_of(out)
        kinds = [types_of(part) for part in self._parts]
        if wanted is None or wanted not in kinds[1:] or wanted == kinds[0]:
            return None
        if wanted not in self._others:
            self._others[wanted] = self._compiled_to_take(self._parts[kinds.index(wanted)])
        return self._others[wanted]


def _type(x: Any) -> Any:
    return x if is_static(x) else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _gone(given: dict[str, Any]) -> list[str]:
    """A line for each array that is deleted, or is in `out` and an argument too."""
    lines = []
    leaves = [
        (show_path(path, name), leaf)
        for name, value in given.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
        if isinstance(leaf, jax.Array)
    ]
    taken = {id(leaf) for leaf in jax.tree.leaves(given.get("out"))}
    for path, leaf in leaves:
        if leaf.is_deleted():
            lines.append(f"{path}  {jax.typeof(leaf).str_short(short_dtypes=True)}, deleted")
        elif id(leaf) in taken and not path.startswith("out"):
            lines.append(f"{path}  {jax.typeof(leaf).str_short(short_dtypes=True)}, which is in `out` too")
    return lines
