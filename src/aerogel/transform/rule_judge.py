"""The judgement of a rule or a pass: a program with and without it, both against float64."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.judging.agree import Difference, Reference, compare, float64_reference
from aerogel.compiler.rules import RuleCheckError

from .optimize import function_place, optimize
from .rule_facts import Facts
from .rule_probes import Probe, draws
from .rule_surroundings import random_programs
from .trace_program import function_name

_jax.exclude_from_tracebacks(__file__)


@dataclass(frozen=True)
class Subject:
    """What is judged.

    Attributes:
        noun: "rule" or "pass".
        early: whether what it writes may be differentiated.
        options: those of `optimize` that put it to work, and nothing else.
    """

    noun: str
    name: str
    exactness: Exactness
    early: bool
    options: dict[str, Any]

    def at_work(self, f: Callable[..., Any], on_report: Any = None) -> Callable[..., Any]:
        """A function to which it is applied."""
        return optimize(f, **self.options, on_report=on_report)


@dataclass(frozen=True)
class Case:
    """A program at some arguments.

    Attributes:
        facts: what it takes for granted of each array in its arguments.
        fires: whether the subject fires on it.
        reason: why it does not.
    """

    subject: Subject
    f: Callable[..., Any]
    args: tuple[Any, ...]
    facts: Facts
    fires: bool
    reason: str

    def transformed(self, transform: Callable[..., Any], whole: bool) -> Callable[..., Any]:
        """The program rewritten under a transformation; over it, where rewriting has its place behind derivatives.

        Over it too, where the transformation makes a `whole` program that is to be seen.
        """
        if self.subject.early and not whole:
            return transform(self.subject.at_work(self.f))
        return self.subject.at_work(transform(self.f))

    def where(self, more: str = "") -> str:
        """The program and the types of its arguments."""
        types = ", ".join(jax.typeof(x).str_short(True) for x in jax.tree.leaves(self.args))
        return f"{named(self.f)} at {types}{more}"

    def error(self, what: str, to_fix: str, more: str = "", **fields: Any) -> RuleCheckError:
        """The error about this program."""
        return RuleCheckError(
            rule=self.subject.name, noun=self.subject.noun, what=what, where=self.where(more), to_fix=to_fix, **fields
        )


def named(f: Callable[..., Any]) -> str:
    """A function as users know it, and its line."""
    place = function_place(f)
    return f"`{function_name(f)}`" + (f" ({place})" if place else "")


def as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    """The transformation that does nothing."""
    return f


def judge_under(case: Case, transform: Callable[..., Any], seed: int) -> None:
    """The program under a transformation, at random numbers."""
    drawn = draws(case.args, case.facts, seed)
    loosest = case.subject.exactness if case.subject.exactness is not Exactness.BITWISE else Exactness.REASSOCIATES
    if transform is jax.vmap:
        pairs = [
            Probe("", jax.tree.map(lambda *xs: jnp.stack(xs), a.args, b.args)) for a, b in itertools.pairwise(drawn)
        ]
        judge(case, pairs, loosest, jax.vmap)
    elif transform is jax.grad:
        leaves, tree = jax.tree.flatten(case.args)
        floats = tuple(k for k, x in enumerate(leaves) if jnp.issubdtype(jnp.result_type(x), jnp.floating))
        outs = jax.tree.leaves(jax.eval_shape(case.f, *case.args))
        if not floats or not any(jnp.issubdtype(x.dtype, jnp.floating) for x in outs):
            return

        def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
            def loss(*flat: Any) -> Any:
                found = jax.tree.leaves(f(*jax.tree.unflatten(tree, flat)))
                terms = [jnp.sum(jnp.sin(x)).astype(np.float32) for x in found if jnp.issubdtype(x.dtype, jnp.floating)]
                return sum(terms, np.float32(0))

            grad = jax.grad(loss, argnums=floats)
            return lambda *args: grad(*jax.tree.leaves(args))

        # What stands before a derivative is the rule's; a derivative adds up in another order.
        judge(case, drawn, max(loosest, Exactness.REASSOCIATES, key=list(Exactness).index), gradient)
    else:
        judge(case, drawn, loosest, transform)


def judge_around(case: Case, seed: int) -> None:
    """The program in random ones around it, at random numbers."""
    order = list(Exactness)
    exactness = max(case.subject.exactness, Exactness.REASSOCIATES, key=order.index)
    judge(case, draws(case.args, case.facts, seed), exactness, random_programs(seed, case.facts), whole=True)


def judge(
    case: Case,
    probes: Sequence[Probe],
    exactness: Exactness,
    transform: Callable[[Any], Any],
    whole: bool = False,
) -> None:
    """Compares a program with and without the rule at all probes: one after the other, in one loop."""
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *(probe.args for probe in probes))

    def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: jax.lax.map(lambda one: f(*one), args)

    natural = _jax.original_jit(mapped(transform(case.f)))
    want = jax.tree.leaves(natural(*stacked))
    got = jax.tree.leaves(_jax.original_jit(mapped(case.transformed(transform, whole)))(*stacked))
    flat = jax.tree.leaves(stacked)
    reference: Any = None
    for k, probe in enumerate(probes):
        ours, theirs = ([x[k] for x in found] for found in (got, want))
        if not compare(ours, theirs, exactness=Exactness.BITWISE):
            continue
        if reference is None:
            program = natural.trace(*stacked).jaxpr
            reference = float64_reference(program.jaxpr, program.consts, flat)
        one = reference
        if isinstance(reference, Reference):
            one = Reference(tuple(v[k] for v in reference.values), tuple(s[k] for s in reference.spread))
            ours = [_numbers(*xs) for xs in zip(ours, theirs, one.values, strict=True)]
        found = compare(ours, theirs, one, exactness=exactness, inputs=jax.tree.leaves(probe.args))
        if found and not (isinstance(one, Reference) and _is_nearer(ours, theirs, one, exactness)):
            raise _disagreement(case, probe, exactness, transform, found[0])


def _is_nearer(ours: Sequence[Any], theirs: Sequence[Any], one: Reference, exactness: Exactness) -> bool:
    """Whether the worst entry of each result is no worse than the natural program's worst one.

    Where underflow or cancellation spoils both, it spoils other entries when sums are in another order. Overflow is
    judged entry by entry: what is a number without the rule has to be one with it, and an entry that neither has is
    no excuse for others; but where a result holds an entry that its type cannot hold at all, others may go with it, as
    in the solution of a system.
    """
    if exactness is Exactness.BITWISE:
        return False
    for a, b, truth in zip(ours, theirs, one.values, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape or not jnp.issubdtype(a.dtype, jnp.inexact):
            return False
        is_number, was_number = (np.isfinite(np.asarray(x).astype(truth.dtype)) for x in (a, b))
        beyond = np.abs(truth) > float(jnp.finfo(a.dtype).max)
        if (was_number & ~is_number).any() and not beyond.any():
            return False
        with np.errstate(invalid="ignore"):  # of infinities
            off, natural = (np.abs(np.asarray(x).astype(truth.dtype) - truth) for x in (a, b))
        worst, excuse = np.max(off, where=is_number, initial=0.0), np.max(natural, where=was_number, initial=0.0)
        if not worst <= excuse:  # nor where float64 has no number, and one of them has
            return False
    return True


def _numbers(ours: Any, theirs: Any, truth: np.ndarray) -> Any:
    """`ours` where there is a number to compare it with; `theirs` where there is none and neither has one."""
    if not jnp.issubdtype(ours.dtype, jnp.inexact):
        return ours
    nowhere = ~np.isfinite(truth) & ~np.isfinite(np.asarray(ours)) & ~np.isfinite(np.asarray(theirs))
    return jnp.where(nowhere, theirs, ours)


def _disagreement(
    case: Case, probe: Probe, exactness: Exactness, transform: Callable[[Any], Any], found: Difference
) -> RuleCheckError:
    name = getattr(transform, "__name__", "a transformation")
    under = "" if transform is as_it_is else ", in a random program" if name == "around" else f", under `{name}`"
    detail = f" ({found.detail})" if found.detail else ""
    return case.error(
        f"is not `{exactness}`." if found.kind == "value" else f"changed the {found.kind} of a result.",
        "claim less with `exactness`, refuse these types with `when`, or mend `after`",
        under + probe.what,
        got=found.got + detail,
        wanted=found.want,
    )
