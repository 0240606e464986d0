"""`jit`: a compiled function that takes and returns modules, and values that are no arrays."""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

import jax

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.compiler.pipeline import Pass
from aerogel.compiler.rules import AnyRule, rule_set
from aerogel.module import BoundMethod, Module

from ._compiled import Shown
from ._compiled import compiled as compile_
from ._donation import DONATE, State, StateCalls, all_arguments
from ._split import differs, divider, joined, split
from .optimize import SLOT, memoised
from .recompiles import Traces
from .stages import stage_of, way_to

_jax.exclude_from_tracebacks(__file__)

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
_MADE_BY = "__aerogel_made_by__"
Donate = Literal["none", "all", "state"]


class Jitted(Protocol, Generic[P, R]):
    """A function that `jit` made."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of the compiled function. It is computed while Python goes on."""
        ...

    @overload
    def __get__(self, instance: None, owner: Any = None, /) -> "Jitted[P, R]": ...
    @overload
    def __get__(self: "Jitted[Concatenate[S, Q], R]", instance: S, owner: Any = None, /) -> "Jitted[Q, R]": ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The program for these arguments, or shapes, ready to be compiled: `jax.stages.Lowered`.

        What is compiled of it takes what the function takes, but for arguments that are static by position or name:
        the same values that are no arrays, else an `ArgumentsError` is raised.
        """
        ...

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The traced program for these arguments, or shapes: `jax.stages.Traced`."""
        ...

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The result with shapes and dtypes in the place of arrays."""
        ...

    def clear_cache(self) -> None:
        """Forgets all that was compiled."""
        ...


@overload
def jit(
    f: Callable[P, R],
    /,
    *,
    numerics: str = ...,
    rules: Iterable[AnyRule] | None = ...,
    passes: Sequence[Pass] | None = ...,
    tune: bool = ...,
    memory_limit: int | str | None = ...,
    donate: Donate = ...,
    explain_recompiles: bool = ...,
    **options: Any,
) -> Jitted[P, R]: ...
@overload
def jit(
    *,
    numerics: str = ...,
    rules: Iterable[AnyRule] | None = ...,
    passes: Sequence[Pass] | None = ...,
    tune: bool = ...,
    memory_limit: int | str | None = ...,
    donate: Donate = ...,
    explain_recompiles: bool = ...,
    **options: Any,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(
    f: Any = None,
    /,
    *,
    numerics: str = "fast",
    rules: Iterable[AnyRule] | None = None,
    passes: Sequence[Pass] | None = None,
    tune: bool = False,
    memory_limit: int | str | None = None,
    donate: Donate = "none",
    explain_recompiles: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    **options: Any,
) -> Any:
    """A function that computes what `f` computes, optimised and compiled: `jax.jit(ag.optimize(f))`, and more.

    The first call with arguments of new types or structure traces and compiles `f`; later ones run what was compiled
    then, and return at once, while the results are computed. Modules go in and come out as they are.

    Values that are no arrays (functions, strings, dtypes, ...), in any argument at any depth, are static: another
    value means another trace. Numbers are arrays, Python's too, as in JAX. The result may hold values that are no
    arrays: they come back as they were when `f` was traced.

    Args:
        f: a function; a module or any other pytree that can be called; a method of a module. The arrays of a
            module, also of a method's, are arguments and not constants. Without `f`, a decorator is returned.
        numerics: as for `optimize`.
        rules: as for `optimize`.
        passes: as for `optimize`.
        tune: as for `optimize`.
        memory_limit: as for `optimize`.
        donate: which arguments' memory the results may take: "none"; "all"; "state", those whose structure and types
            come back in the result, such as a model and an optimiser's state, but no lone arrays. Donated arguments
            cannot be used again. The arrays of `f` itself are never donated.
        explain_recompiles: log at each trace after the first what changed in which argument (see `recompiles`).
        static_argnums: positions of arguments that are static whatever they hold, numbers too.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments to donate, beside those that `donate` finds.
        donate_argnames: names of such arguments.
        **options: what else `jax.jit` takes: `in_shardings`, `out_shardings`, `keep_unused`, `inline`, ... Shardings
            below an argument that holds values that are no arrays cannot be told apart: give one for the argument.

    Raises:
        UsageError: `numerics` or `donate` is another word, or `passes` holds something else than passes.
        StructureError: at a call: a value that is no array cannot be hashed.
        TypeError: `f` is not callable; what `jax.jit` raises.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> class Linear(ag.Module):
    ...     weight: jax.Array
    ...     def __call__(self, x, activation):
    ...         return activation(self.weight @ x)
    >>> apply = ag.jit(Linear(jnp.eye(2)))
    >>> apply(jnp.array([1.0, -1.0]), jax.nn.relu)
    Array([1., 0.], dtype=float32)
    """
    if donate not in DONATE:
        raise UsageError(argument="donate", got=donate, wanted=DONATE, function="jit")
    named: dict[str, Any] = {
        "numerics": numerics,
        "rules": None if rules is None else rule_set(rules),
        "passes": passes,
        "tune": tune,
        "memory_limit": memory_limit,
        "donate": donate,
        "explain_recompiles": explain_recompiles,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        **options,
    }
    return functools.partial(jit, **named) if f is None else _made(f, named)


def _made(f: Any, given: dict[str, Any]) -> Any:
    arguments = dict(given)
    bound, function = as_function(f)
    traced, traces = _traced(function)
    traces.explain |= arguments.pop("explain_recompiles")
    donate = arguments.pop("donate")
    optimized = {name: arguments.pop(name) for name in ("numerics", "rules", "passes", "tune", "memory_limit")}
    options = arguments if bound is None else after_the_first(arguments)
    if donate == "state":
        compiled, shown = _donating_state(f, function, traces, optimized, options, first=int(bound is not None))
    else:
        compiled, shown = compile_(f, traced, optimized, options)
        if donate == "all":
            everything = all_arguments(function, int(bound is not None), _jax.static_arguments(compiled))
            compiled, shown = compile_(f, traced, optimized, with_donated(options, everything))
    call = _caller(f, compiled, bound, shown)
    # With itself beside it: `functools.wraps` copies attributes to functions that are not `jit`'s.
    setattr(call, _MADE_BY, (call, given))
    return call


def as_function(f: Any) -> tuple[Any, Any]:
    """A callable that holds arrays, as a pytree, and a function that takes it first; None and a plain function."""
    _jax.check_callable(f)
    is_method = isinstance(f, types.MethodType) and isinstance(f.__self__, Module)
    if not is_method and jax.tree_util.all_leaves([f]):
        return None, f

    def make() -> Any:  # anew: with a name and a signature of its own
        def call_it(callable_: Any, /, *args: Any, **kwargs: Any) -> Any:
            return callable_(*args, **kwargs)

        return with_first("callable_", call_it, f)

    called = f.__func__ if is_method else type(f).__call__
    # One per plain function and name: `ag.jit(model)(x)` again and again is traced once, as two jits of one function.
    is_plain = isinstance(called, types.FunctionType)
    made = memoised(called, ("called", getattr(f, "__name__", type(f).__name__)), make) if is_plain else make()
    return BoundMethod(f.__func__, f.__self__) if is_method else f, made


def with_first(name: str, made: Any, f: Any) -> Any:
    """`made`, which takes one argument more than `f`, before those of `f`: with the name and signature of that."""
    made.__name__ = made.__qualname__ = getattr(f, "__name__", type(f).__name__)
    made.__doc__ = f.__doc__
    known = _jax.signature(f)
    if known is not None and name not in known.parameters:  # for options that go by the names of arguments
        first = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
        made.__signature__ = known.replace(parameters=[first, *known.parameters.values()])
    return made


def after_the_first(options: dict[str, Any]) -> dict[str, Any]:
    """Options that go by position, moved by one."""
    moved = dict(options)
    for name in ("static_argnums", "donate_argnums"):
        moved[name] = tuple(i + 1 if i >= 0 else i for i in _as_tuple(options[name])) or None
    shardings = options.get("in_shardings")
    if isinstance(shardings, tuple | list):
        moved["in_shardings"] = (None, *shardings)
    return moved


def with_donated(options: dict[str, Any], more: State) -> dict[str, Any]:
    """Options that donate these arguments too."""
    numbers, names = more
    return {
        **options,
        "donate_argnums": tuple({*_as_tuple(options["donate_argnums"]), *numbers}),
        "donate_argnames": tuple({*_as_tuple(options["donate_argnames"]), *names}),
    }


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


def _traced(function: Any) -> tuple[Any, Traces]:
    """What is traced in the place of `function`, and its record of traces.

    There is one per plain function, so that two `jit`s of it share what JAX keeps (see `memoised` in optimize.py).
    """
    if not isinstance(function, types.FunctionType):
        return _new_traced(function)
    return memoised(function, "traced", lambda: _new_traced(function))


def _new_traced(function: Any) -> tuple[Any, Traces]:
    traces = Traces(function)
    return _tracing(function, traces, None), traces


def _tracing(function: Any, traces: Traces, check: Any) -> Any:
    @_jax.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(joined, args))
        kwargs = {name: joined(value) for name, value in kwargs.items()}
        traces.note(args, kwargs)
        out = function(*args, **kwargs)
        if check is not None:
            check(args, kwargs, out)
        return split(out, "result")

    traced.__dict__.pop(SLOT, None)  # `wraps` copies attributes
    return traced


def _donating_state(
    f: Any, function: Any, traces: Traces, optimized: Any, options: Any, first: int
) -> tuple[Any, Shown]:
    calls: Any = None
    traced = _tracing(function, traces, lambda *seen: calls.check(*seen))

    def make(state: State) -> Any:
        return compile_(f, traced, optimized, with_donated(options, state))[0]

    plain, shown = compile_(f, traced, optimized, options)
    numbers, names = _jax.static_arguments(plain)
    donated = _jax.donated_arguments(plain)
    calls = StateCalls(plain, make, ((*numbers, *donated[0], *range(first)), (*names, *donated[1])))
    return calls, shown


def _caller(f: Any, compiled: Any, bound: Any, shown: Shown) -> Any:
    """The function that users call.

    JAX's C++ code answers where it can: nothing in Python stands before it. What it cannot answer comes to
    `cache_miss`: calls with new types, with values that are no arrays, and under transformations.
    """
    plain, missed = (
        (compiled.plain, compiled.cache_miss)
        if isinstance(compiled, StateCalls)
        else (compiled, _jax.cache_miss(compiled))
    )
    static = _jax.static_arguments(plain)
    divide = divider(static)

    def cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        if not _jax.trace_state_clean() and _jax.reverse_mode_is_next() and not _jax.gradients_taken.value:
            with _jax.gradients_taken(_jax.derivatives_above()):
                return cache_miss(*args, **kwargs)
        given = args, kwargs
        args, kwargs = divide(args, kwargs)
        if differs(given, (args, kwargs)):
            return joined(compiled(*args, **kwargs)), None, False
        out, known, is_old = missed(*args, **kwargs)
        return joined(out), known, is_old

    def without_jit(*args: Any, **kwargs: Any) -> Any:
        return joined(compiled(*args, **kwargs))

    call = shown(_jax.with_cache_miss(plain, without_jit, cache_miss))
    made = _Compiled(call, *(() if bound is None else (bound,)))
    functools.update_wrapper(made, f, updated=())
    made.__name__ = getattr(f, "__name__", type(f).__name__)
    made.stages = _Stages(f, compiled, made.args, divide, static)
    return made


class _Compiled(functools.partial[Any]):
    """A compiled function, with the callable that it belongs to as its argument if that holds arrays.

    Its stages are methods, not attributes: `functools.wraps` would give those to what `jax.grad` makes of it, and JAX
    asks a function that has a `trace` for its program.
    """

    __name__: str
    __qualname__: str
    stages: "_Stages"

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.stages.ahead("lower", args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self.stages.ahead("trace", args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self.stages.eval_shape(args, kwargs)

    def clear_cache(self) -> None:
        self.stages.compiled.clear_cache()
        _jax.forget_answers(self.func)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None or self.args else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"ag.jit({self.stages.natural!r})"

    def __reduce__(self) -> Any:
        return self.__qualname__  # as functions are pickled: by name


@dataclass(frozen=True)
class _Stages:
    """What a compiled function does before it computes."""

    natural: Any
    compiled: Any
    first: tuple[Any, ...]
    divide: Any
    static: State

    def eval_shape(self, args: Any, kwargs: Any) -> Any:
        args, kwargs = self.divide((*self.first, *args), kwargs)
        return joined(self.compiled.eval_shape(*args, **kwargs))

    def ahead(self, method: str, args: Any, kwargs: Any) -> Any:
        way = way_to(self.natural, self.first, self.static, args, kwargs)
        given = (*self.first, *args), kwargs
        args, kwargs = self.divide(*given)
        stage = getattr(self.compiled, method)(*args, **kwargs)
        return stage_of(stage, way, differs(given, (args, kwargs)))


def made_by(f: Any) -> tuple[Any, dict[str, Any]]:
    """What `jit` was given to make `f`: a function, and all arguments but it. `f` itself if `jit` did not make it."""
    owner, given = getattr(f, "__dict__", {}).get(_MADE_BY, (None, {}))
    return (f.__wrapped__, given) if owner is f else (f, {})
