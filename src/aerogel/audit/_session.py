"""One run: `jax.jit` is replaced, functions are recorded, the report is written when the interpreter ends."""

import atexit
import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from aerogel import _jax
from aerogel._launch import RunOptions
from aerogel.transform import optimize
from aerogel.transform._compiled import Shown, take_over

from ._compare import Sampler
from ._counted import CountedJit
from ._data import RunReport, to_json
from ._origin import Origin, origin_in, origin_of, user_line
from ._record import Record
from ._render import print_report, to_text

_jax.exclude_from_tracebacks(__file__)

_SLOT = "__aerogel_run__"


class Session:
    """The functions of one run. Use `start_run`; a test makes one, calls `install` and later `uninstall`."""

    def __init__(self, options: RunOptions):
        self.options = options
        self.records: dict[Origin, Record] = {}
        self.sampler = Sampler() if options.compare else None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """From here on everything that is given to `jax.jit` is optimised, except by JAX itself."""
        api, pjit = _jax.jit_doors
        # `jax.experimental.pjit` takes its `pjit` from there, when a script imports it.
        doors = [(jax, "jit"), (api, "jit"), (pjit, "pjit")]
        replaced: dict[Any, Any] = {}
        for module, name in doors:
            original = getattr(module, name)
            setattr(module, name, replaced.setdefault(original, self.replace(original)))
            self._undo.append(functools.partial(setattr, module, name, original))
        self._undo.append(take_over(self.compiled))
        self._undo.append(_jax.watch_slow_calls(self.observe))

    def uninstall(self) -> None:
        """JAX as it was; functions that were compiled stay as they are."""
        while self._undo:
            self._undo.pop()()

    def replace(self, original: Any) -> Any:
        """A function like `original` (`jax.jit`, `pjit`) that optimises what callers outside JAX give it."""
        parameters = list(inspect.signature(original).parameters.values())
        names = [p.name for p in parameters if p.name != "fun"]
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        defaults = {p.name: p.default for p in parameters if p.name != "fun"}
        with_resources = original is _jax.jit_doors[1].pjit

        def make(fun: Any, options: dict[str, Any]) -> Any:
            wrapper, record = self.optimized(fun)
            native = _jax.make_jit(wrapper, **{**defaults, **options}, use_resource_env=with_resources)
            return self.counted(native, fun, options, record)

        @functools.wraps(original)
        @_jax.api_boundary
        def jit(*args: Any, **options: Any) -> Any:
            # Frame 1 is JAX's boundary, which hides this file's frames from the user's tracebacks.
            is_inside = is_jax(sys._getframe(2).f_globals.get("__name__", ""))
            if is_inside or len(args) > len(positional) or not options.keys() <= set(names):
                return original(*args, **options)
            if not args and not with_resources:
                return lambda fun: make(fun, options)
            if not args or not callable(args[0]):
                return original(*args, **options)  # JAX's own error
            options |= zip(positional[1:], args[1:], strict=False)
            # `make`, in this frame: JAX's warnings count five frames up to the user's line.
            wrapper, record = self.optimized(args[0])
            native = _jax.make_jit(wrapper, **{**defaults, **options}, use_resource_env=with_resources)
            return self.counted(native, args[0], options, record)

        return jit

    def compiled(self, f: Any, traced: Any, optimized: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Shown]:
        """What `ag.jit` compiles in the place of `f`: optimised once, as it asked for, and noted; and what counts."""
        wrapper, record = self.optimized(traced, f, **optimized)
        return _jax.original_jit(wrapper, **options), lambda call: self.counted(call, traced, options, record)

    def counted(self, native: Any, fun: Any, options: dict[str, Any], record: Record) -> CountedJit:
        """`native`, which JAX made of the optimised form of `fun`, with a counter."""
        jitted = CountedJit(native, fun, functools.partial(jax.jit, **options), record.fold)
        record.living.add(jitted)
        return jitted

    def optimized(
        self,
        fun: Any,
        natural: Any = None,
        numerics: str | None = None,
        passes: Any = None,
        rules: Any = None,
        tune: bool = False,
        memory_limit: Any = None,
    ) -> tuple[Any, Record]:
        """The optimised form of `fun`, the same one each time: two jits of one function share JAX's caches.

        Args:
            fun: what is traced.
            natural: what the user knows, if it is something else.
            numerics: what this function asks for itself.
            passes: the same; what is not optimised by the default passes is not measured.
            rules: the same.
            tune: the same.
            memory_limit: the same.
        """
        tune = tune or self.options.tune
        numerics = numerics or self.options.numerics
        known = self.known(fun)
        asked = numerics, passes, rules, memory_limit, tune
        if known is not None and known.wrapper is not None and known.asked == asked:
            return known.wrapper, known.record
        origin = origin_of(fun if natural is None else natural)
        record = self.records.setdefault(origin, Record(origin))
        if self.sampler is None or any(one is not None for one in (passes, rules, memory_limit)):
            given: dict[str, Any] = {"rules": rules, "passes": passes, "memory_limit": memory_limit, "tune": tune}
            wrapper = optimize(fun, numerics=numerics, **given, on_report=record.add_trace)
        else:
            wrapper = self.sampler.watched(fun, numerics, record, tune)
        if isinstance(fun, types.FunctionType):
            # A cycle, which the garbage collector frees; a weak table would never free `fun`, which the wrapper holds.
            fun.__dict__[_SLOT] = Known(id(fun), self, record, wrapper, asked)
        wrapper.__dict__[_SLOT] = Known(id(wrapper), self, record, None, asked)
        return wrapper, record

    def known(self, fun: Any) -> "Known | None":
        """What this session noted on a function; `functools.wraps` copies notes, and a copy does not count."""
        note = fun.__dict__.get(_SLOT) if isinstance(fun, types.FunctionType) else None
        return note if note is not None and note.owner == id(fun) and note.session is self else None

    def observe(self, wrapper: Any, parameters: Any, flat: Any, args: Any, kwargs: Any) -> None:
        """Takes note of a call that JAX's C++ path did not answer: a new signature, or one made while tracing."""
        known = self.known(wrapper)
        if known is None:
            return
        record = known.record
        if not record.is_resolved:
            self.resolve(record, args, kwargs)
        if _jax.is_staging():
            record.calls_inside += 1
        elif self.sampler is not None and _jax.trace_state_clean():
            self.sampler.take(record, parameters, flat)

    def resolve(self, record: Record, args: Any, kwargs: Any) -> None:
        """The first call shows what the function given to `jax.jit` did not: the user's function and line."""
        record.is_resolved = True
        if record.origin.is_library:
            record.origin = origin_in(record.origin.name, [*args, *kwargs.values()]) or record.origin
        if record.origin.is_library:
            record.called_from = user_line()

    def report(self) -> RunReport:
        """All that is known by now."""
        return RunReport(
            command=self.options.command,
            numerics=self.options.numerics,
            compared=self.sampler is not None,
            backend=jax.default_backend(),
            jax_version=jax.__version__,
            functions=tuple(record.row() for record in self.records.values()),
            notes=() if self.sampler is None else self.sampler.notes(),
        )


@dataclass(frozen=True, eq=False)
class Known:
    """A note on a function: whose it is (by `id`), its record, and how and into what a user's was optimised."""

    owner: int
    session: Session
    record: Record
    wrapper: Any
    asked: Any


def is_jax(module: str) -> bool:
    """Whether a module is JAX's own: its eager operations and its tools call `jax.jit` too."""
    return module == "jax" or module.startswith("jax.")


def start_run(strings: Mapping[str, str]) -> Session:
    """Begins a run in this process, at the moment when `jax` has been imported."""
    session = Session(RunOptions.from_strings(strings))
    session.install()
    # JAX shuts down in exit handlers of its own. They were registered by now and run later than this one.
    atexit.register(finish_run, session, os.getpid())
    return session


def finish_run(session: Session, process: int) -> None:
    """Measures, writes the report and prints the table; nothing in a forked child, which is not the script."""
    if os.getpid() != process:
        return
    session.uninstall()
    # An interrupted user wants the prompt back.
    if session.sampler is not None and not isinstance(sys.exc_info()[1] or last_error(), KeyboardInterrupt):
        session.sampler.measure(session.records.values())
    report = session.report()
    if session.options.report:
        path = Path(session.options.report)
        path.write_text(
            to_json(report) if path.suffix == ".json" else to_text(report, width=100, whole=True), encoding="utf-8"
        )
    if not session.options.quiet:
        print_report(report)


def last_error() -> object:
    """The error that ended the script, if one did."""
    return getattr(sys, "last_value", None)
