"""Passes, and how they are run one after the other.

A pass is a function from program to program with a name. A pass that raises, runs out of time or returns an
ill-typed program leaves the program as it was: the report says so in red, one warning names it, and under
`AEROGEL_STRICT=1` (our tests) it is an error.
"""

import ctypes
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from aerogel._errors import PassFailedWarning
from aerogel._jax import Jaxpr

from .check import check_program
from .cost import Machine, machine, program_cost
from .exactness import Exactness
from .normalize import normalize
from .program import Program, count_equations
from .report import Decision, Report


@dataclass(frozen=True)
class Context:
    """What a pass may know about where its program will run."""

    allowed: frozenset[Exactness]
    platform: str
    before_differentiation: bool = False

    @property
    def machine(self) -> Machine:
        """The machine model of the platform."""
        return machine(self.platform)


class Pass(Protocol):
    """A function from program to program.

    Laws (tests/laws runs them on every pass): the result takes and returns the same types and `check_program`
    accepts it; outputs agree to the pass's stated exactness; a decision with `fired` stands for every change, and a
    program to which nothing was done is returned as the same object.
    """

    name: str
    exactness: Exactness

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]: ...


class PassTimeout(RuntimeError):
    """A pass ran longer than its budget."""


def budget_seconds(equations: int) -> float:
    """Time that the passes of one program may take together: generous, and linear in the program's size."""
    return float(os.environ.get("AEROGEL_PASS_SECONDS", "20")) + 0.01 * equations


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises `PassTimeout` in this thread when the body takes longer.

    An asynchronous exception is the only way to stop a loop in another's pure Python code; signals would work in
    the main thread only.
    """
    thread = threading.get_ident()
    done = threading.Event()

    def stop() -> None:
        if not done.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(PassTimeout))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        done.set()
        timer.cancel()


def run_passes(
    program: Program, passes: Sequence[Pass], context: Context, name: str, where: str
) -> tuple[Program, Report]:
    """The program after all passes, and what each did. The original object when nothing fired."""
    start = time.perf_counter()
    equations = count_equations(program.jaxpr)
    decisions: list[Decision] = []
    current = program
    refusal = refused_whole(program.jaxpr)
    if refusal is not None:
        decisions.append(Decision("optimize", "the program is left as it is", "", False, refusal))
    elif passes:
        current, failure = attempt("normalize", name, lambda: normalize(program), program, equations)
        decisions += failure
    for one in passes if refusal is None else ():
        current, made = attempt(one.name, name, lambda one=one: one(current, context), current, equations)
        decisions += made
    if not any(d.fired for d in decisions):
        current = program
    before = program_cost(program.jaxpr)
    after = before if current is program else program_cost(current.jaxpr)
    seconds = time.perf_counter() - start
    return current, Report(name, where, tuple(decisions), before, after, equations, seconds)


def refused_whole(jaxpr: Jaxpr) -> str | None:
    """Why no pass looks at a program at all; None when they do."""
    if jaxpr.is_high:
        return "it holds values of types that JAX has still to lower"
    for v in (*jaxpr.invars, *jaxpr.constvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)):
        if not all(isinstance(n, int) for n in getattr(v.aval, "shape", ())):
            return "it has symbolic shapes: no size is known"
    return None


def attempt(
    name: str, function: str, run: Callable[[], tuple[Program, list[Decision]]], program: Program, equations: int
) -> tuple[Program, list[Decision]]:
    """What `run` gives, checked; or `program` itself and a red decision.

    This is the one place that catches every error: a compiler must not break the program that it was given, and a
    fault must not stay silent either.
    """
    try:
        with deadline(budget_seconds(equations)):
            result, decisions = run()
            if result is not program:
                check_program(result, program)
    except Exception as error:
        if os.environ.get("AEROGEL_STRICT") == "1":
            raise
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        warnings.warn(PassFailedWarning(pass_name=name, function=function, reason=reason), stacklevel=2)
        failed = Decision(name, "left the program as it was", "", False, reason, failed=True)
        return program, [failed]
    return result, list(decisions)
