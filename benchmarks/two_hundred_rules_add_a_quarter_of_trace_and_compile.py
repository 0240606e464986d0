"""Claim: 200 rules add at most a quarter to `jax.jit`'s trace and compile time, and grow linearly.

The programs are those of `optimising_adds_a_quarter_of_trace_and_compile`. The rules are pairs of every two of some
common operations, and functions for single primitives; they look at nearly every equation, and none of them fires but
in few places. *added* is the extra time of tracing and lowering with the rules over that with none, over the whole time
of plain `jax.jit`. As there, programs of 10,000 equations are compiled in a process apart, which is ended after
`COMPILE_LIMIT_S`: a compilation that ran out counts as that long, and *added* is then larger than the truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag
from aerogel.compiler import Rule, RuleSet, on

from ._finding import Finding
from ._timing import Quartiles
from .optimising_adds_a_quarter_of_trace_and_compile import (
    BOUND_LINEAR,
    PROGRAMS,
    Seconds,
    arguments,
    compile_apart,
    count,
    describe,
)

BOUND_ADDED = 0.25
ROUNDS = {100: 10, 1_000: 6, 10_000: 3}
COMPILED = {100: 10, 1_000: 4, 10_000: 0}  # in so many of the rounds; what is compiled in none, in a process apart
ONE = (jnp.exp, jnp.log, jnp.tanh, jnp.sin, jnp.cos, jnp.sqrt, jnp.abs, jnp.square, jnp.sum, jnp.mean, jnp.max)
TWO = (jnp.add, jnp.multiply, jnp.subtract, jnp.divide, jnp.matmul, jnp.maximum)
PRIMITIVES = (
    "sin cos exp log tanh dot_general reduce_sum reduce_max add mul div max scan cholesky sort cumsum gather "
    "integer_pow transpose broadcast_in_dim"
)


def rule_of(name: str, before: Callable[..., Any], after: Callable[..., Any]) -> Rule:
    """A pair."""
    rule = ag.rule(exactness="reassociates", reason="a benchmark says so", name=name)(before)
    rule.to(after)
    return rule


def pair(f: Callable[..., Any], g: Callable[..., Any]) -> Rule:
    """A rule for one operation after another."""
    return rule_of(f"{f.__name__}-{g.__name__}", lambda x: f(g(x)) * 1.75, lambda x: 1.75 * f(g(x)) + 0.5)


def triple(f: Callable[..., Any], g: Callable[..., Any]) -> Rule:
    """A rule for two operations of two operands."""
    before = lambda x, y, z: f(g(x, y), z) - 1.5  # noqa: E731
    return rule_of(f"{f.__name__}-{g.__name__}-of-two", before, lambda x, y, z: f(g(x, y), z) - 1.25)


def two_hundred() -> RuleSet:
    """The rules."""
    pairs = [pair(f, g) for f, g in itertools.product(ONE, ONE)] + [
        triple(f, g) for f, g in itertools.product(TWO, TWO)
    ]
    single = [
        on(name, name=f"{name}-{k}")(lambda *_, site: "in a loop" if site.in_loop else "as it is")
        for name in PRIMITIVES.split()
        for k in range(3)
    ]
    return RuleSet((*pairs, *single))


def compare(kind: str, size: int, rules: RuleSet, rounds: int, compiled: int) -> tuple[int, Seconds, Seconds, Seconds]:
    """Equations of the program, and the times of plain `jit`, without rules and with them; who goes first rotates."""
    make, args = PROGRAMS[kind], arguments()
    plain, none, many = Seconds(), Seconds(), Seconds()
    forms: list[tuple[Seconds, bool, Callable[[Callable], Callable]]] = [
        (plain, True, lambda f: f),
        (none, False, lambda f: ag.optimize(f, rules=())),
        (many, False, lambda f: ag.optimize(f, rules=rules)),
    ]
    for round_ in range(rounds):
        first = round_ % len(forms)
        for times, is_compiled, wrap in forms[first:] + forms[:first]:
            times.add(wrap(make(size)), args, is_compiled and round_ < compiled)
    if not compiled:
        seconds, plain.ran_out = compile_apart(kind, size, "plain")
        plain.compile.append(seconds)
    return count(jax.make_jaxpr(make(size))(*args).jaxpr), plain, none, many


def findings(quick: bool = False) -> list[Finding]:
    """A ratio per program and size, and one on linearity per kind of program."""
    rules = two_hundred()
    return [found for kind in PROGRAMS for found in findings_of(kind, rules, quick)]


def findings_of(kind: str, rules: RuleSet, quick: bool) -> list[Finding]:
    """Those of one kind of program."""
    found = []
    compare(kind, 100, rules, 2, 2)  # JAX imports and caches on first use, and rules are traced
    added_per_equation = {}
    for size, rounds in ROUNDS.items():
        if quick and size > 1_000:
            continue
        few = (2, 2) if quick else (rounds, COMPILED[size])
        equations, plain, none, many = compare(kind, size, rules, *few)
        added = np.array(many.trace) - np.array(none.trace)
        added_per_equation[size] = float(np.median(added)) / equations
        details = f"{describe('plain', plain)}; {len(rules)} rules: {np.median(added):.3f} s more"
        name = f"{kind}, {equations} equations"
        found.append(Finding(name, "added", Quartiles.of(added / np.median(plain.whole)), BOUND_ADDED, details))
    if 10_000 in added_per_equation:
        ratio = added_per_equation[10_000] / added_per_equation[1_000]
        details = f"{added_per_equation[10_000] * 1e6:.0f} microseconds per equation"
        once = Quartiles(ratio, ratio, ratio)
        found.append(Finding(kind, "per equation, 10,000 over 1,000", once, BOUND_LINEAR, details))
    return found
