"""Random programs around the places where rules and passes of the catalogue fire give the same with the optimiser.

`make soundness` draws 100,000 of them; the suite 3,000, of which a slow machine takes those that it has time for.
`AEROGEL_SOUNDNESS=5000` draws so many, `AEROGEL_SOUNDNESS_START=3000` begins elsewhere, `AEROGEL_SOUNDNESS_SEED=1234`
runs that program and prints it.

All sizes from which a rewrite pays are taken away, so that a few entries are enough for it. A chunk of programs is
compiled as one: what takes time is not to run them, but to start the compiler.
"""

import collections
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel import _jax
from aerogel.compiler import rules
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.judging.agree import compare, float64_reference
from drawing.free_prices import CATALOGUE, DIRECTIONS, free_prices, free_rules
from drawing.together import run_together
from strategies import Program, draw_site
from test_differential import gradient, same_program, user_settings, weak_types

COUNT = int(os.environ.get("AEROGEL_SOUNDNESS", "3000"))
START = int(os.environ.get("AEROGEL_SOUNDNESS_START", "0"))
ONE = os.environ.get("AEROGEL_SOUNDNESS_SEED")
CHUNK = 25
SEEDS = [int(ONE)] if ONE else list(range(START, START + COUNT))
CHUNKS = [SEEDS[i : i + CHUNK] for i in range(0, len(SEEDS), CHUNK)]
NAMES = {rule.name for rule in CATALOGUE} | {one.name for one in DEFAULT_PASSES}
# A program in which each fires, at the prices of "out of loops".
# fmt: off
FIRES = {
    "argmax-by-blocks": 103, "argmin-by-blocks": 433, "bfloat16-product": 168, "branch-guard": 29, "contraction": 0,
    "convolution-by-rows": 125, "cumlogsumexp-by-rows": 52, "cumlogsumexp-in-a-loop": 403, "cummax-by-rows": 96,
    "cummin-by-rows": 92, "cumprod-by-rows": 276, "cumsum-by-rows": 18, "depthwise-kernel-gradient": 345,
    "diagonal-sum": 1205,
    "equal-cases": 596, "excerpts": 75, "few-term-convolution": 23, "first-of-argsorted": 1061,
    "first-of-argsorted-down": 1634, "first-of-sorted": 179, "full-sums": 4,
    "half-spectra": 185, "in-place": 581, "inverse-products": 133, "inverse-times": 190,
    "last-of-argsorted": 344, "last-of-cumsum": 152, "last-of-sorted": 722, "loop-contraction": 636, "loop-ends": 604,
    "loop-fusion": 11, "loop-hoist": 3, "loop-slots": 414,
    "max-pool-gradient": 483, "orientation": 2, "own-broadcasts": 87, "reroll": 32, "residual-choice": 295,
    "root-power": 76,
    "searched-at-once": 27, "searched-short": 233, "small-axes": 6, "small-cholesky": 84,
    "small-cholesky-diagonal": 148, "small-cholesky-log-det": 4693, "small-det": 421,
    "small-log-det": 972, "small-lu": 36, "small-product": 2, "small-slogdet": 106, "small-solve": 67,
    "small-triangular-solve": 51,
    "sort-by-places": 11, "streaming": 1, "sums-of-rows": 294, "top-one-by-blocks": 58, "turned-product": 3,
    "unit-axis-sum": 109,
    "vector-acos": 56, "vector-asin": 677, "vector-atan": 139, "vector-atan2": 248, "vector-cbrt": 462,
    "vector-cos": 2, "vector-log": 274, "vector-pow": 233, "vector-sin": 2, "vector-tan": 54,
    "window-max": 483, "window-min": 129, "window-sum": 78,
}
# fmt: on
# What rewrites loops by what is stacked, keeps a limit, is for GPUs or for large arrays has programs of its own in
# test_differential.py, laws/ and compiler/; one of a sorted array alone and the gradient of a softmax in rules/
ELSEWHERE = {
    "basis-products",
    "batch-last",
    "block-sums",
    "cancelled-extrema",
    "counted-loops",
    "early-picks",
    "factor-products",
    "flat-draws",
    "fused-attention",
    "lane-terms",
    "last-of-cummax",
    "last-of-cummin",
    "late-values",
    "late-writes",
    "library-sums",
    "long-convolution",
    "loop-branches",
    "loop-commoning",
    "loop-kernel",
    "loop-linear",
    "loop-once",
    "loop-parts",
    "loop-pieces",
    "loop-rows",
    "loop-segments",
    "loop-shifts",
    "loop-split",
    "loop-unroll",
    "loop-windows",
    "loop-words",
    "masked-columns",
    "masks-of-results",
    "memory-limit",
    "mirrored-products",
    "needless-sorts",
    "one-of-sorted",
    "padded-terms",
    "prefix-loops",
    "seams",
    "searched-evenly",
    "shared-chains",
    "shared-counters",
    "shared-reciprocals",
    "short-calls",
    "short-rows",
    "softmax-gradient",
    "stored-sums",
    "terms-as-stored",
    "turned-constants",
    "turned-sums",
    "whole-power",
    "windows",
}
_ORDER = list(Exactness)


@dataclass(frozen=True)
class Pair:
    """A program as it stands and as it is rewritten, and what it is run at.

    Attributes:
        exactness: the loosest promise of what fired.
        fired: the names of that.
        weak: whether types, weak ones included, are the same.
    """

    program: Program
    natural: Any
    optimised: Any
    args: list[Any]
    exactness: Exactness
    fired: frozenset[str]
    weak: bool


def is_wide(seed: int) -> bool:
    """Whether a chunk is drawn with 64 bits: two of sixteen are."""
    return seed // (2 * CHUNK) % 8 == 5


def pair_of(program: Program) -> Pair:
    """A program's two forms: every 5th of a gradient, whose inside is rewritten in every 10th."""
    form = gradient(program) if program.seed % 5 == 0 else None
    f, transform, args = form or (program.function(), lambda f: f, program.args())
    reports: list[Any] = []

    def optimize(f: Callable[..., Any]) -> Callable[..., Any]:
        return ag.optimize(f, rules=CATALOGUE, on_report=reports.append)

    natural = jax.jit(transform(f)).trace(*args)
    inside = program.seed % 10 == 0
    optimised = jax.jit(transform(optimize(f)) if inside else optimize(transform(f))).trace(*args)
    decisions = [d for report in reports for d in report.decisions if d.fired]
    return Pair(
        program,
        natural.jaxpr,
        optimised.jaxpr,
        jax.tree.leaves(args),
        max([Exactness.NO_WORSE, *(Exactness(d.exactness) for d in decisions)], key=_ORDER.index),
        frozenset(d.rule for d in decisions),
        weak_types(natural) == weak_types(optimised),
    )


def differences(pair: Pair, got: list[Any], want: list[Any]) -> list[str]:
    """What differs in the results, judged by the promises of what fired.

    What is equal to 64 units of the largest entry is no wrong result of a sum in another order, and needs no judgement
    against float64, which takes longer than all else here; of the short floats that would be half of it.
    """
    fine = all(x.dtype.itemsize >= 4 for x in (*pair.args, *want))
    loose = pair.exactness in (Exactness.REASSOCIATES, Exactness.FINITE) and fine  # one is the other, of finite numbers
    if not compare(got, want, exactness=Exactness.REASSOCIATES if loose else Exactness.NO_WORSE):
        return []

    def reference() -> Any:
        return float64_reference(pair.natural.jaxpr, pair.natural.consts, pair.args)

    return [str(d) for d in compare(got, want, reference, exactness=pair.exactness, inputs=pair.args)]


def failures(seeds: list[int], fired: "collections.Counter[str] | None" = None) -> list[str]:
    """The programs of these seeds that differ, as texts; counts in how many each rule and pass fires."""
    wide, pairs, found = is_wide(seeds[0]), [], []
    with jax.enable_x64(wide), user_settings(), jax.enable_checks(False):
        for seed in seeds:
            program = draw_site(seed, wide)
            if ONE:
                sys.stdout.write(f"{program}\n")
            try:
                pair = pair_of(program)
                _jax.check_jaxpr(pair.optimised.jaxpr)
            except Exception as error:
                error.add_note(f"{program}\n\nAEROGEL_SOUNDNESS_SEED={seed} repeats it")
                raise
            if fired is not None:
                fired.update(pair.fired)
            if not pair.weak:
                found.append(f"{program}\n\n  weak types differ")
            elif not same_program(pair.natural, pair.optimised):
                pairs.append(pair)
        args = [pair.args for pair in pairs]
        forms = (run_together([getattr(pair, which) for pair in pairs], args) for which in ("optimised", "natural"))
        for pair, got, want in zip(pairs, *forms, strict=True):
            lines = differences(pair, got, want)
            if lines:
                told = "\n  ".join([*lines, f"fired: {', '.join(sorted(pair.fired))}"])
                found.append(f"{pair.program}\n\n  {told}\n  AEROGEL_SOUNDNESS_SEED={pair.program.seed} repeats it")
    return found


@pytest.mark.while_there_is_time("soundness")
@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_catalogue_programs_agree(seeds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program around a rule's pattern has, rewritten, the types and (to what fired promises) the numbers it had."""
    free_prices(DIRECTIONS[seeds[0] // CHUNK % 2], monkeypatch.setattr)
    free_rules(monkeypatch.setattr)
    found = failures(seeds)
    jax.clear_caches()  # programs are not used twice, and their code fills the memory
    assert not found, "\n\n".join([f"{len(found)} of {len(seeds)} programs differ", *found])


# Indices that a turned loop stacked; minima that were compared with distances made anew; powers of float32 beside 64
# bits; infinite kernels beside padded inputs; a reference that had nan where it should not.
DIFFERED = [7985, 5929, 6268, 7191, 7360, 7885, 3093, 4294, 6296, 13257, 4335, 4395, 45305]


@pytest.mark.parametrize("seed", DIFFERED)
def test_what_differed_once_agrees(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs beyond the suite's own, which `make soundness` found, each at the prices of its chunk."""
    free_prices(DIRECTIONS[seed // CHUNK % 2], monkeypatch.setattr)
    free_rules(monkeypatch.setattr)
    assert not failures([seed])


def test_every_rule_and_pass_has_a_program() -> None:
    """What never fires was never judged: each is named with a program in which it does."""
    assert set(FIRES) | ELSEWHERE == NAMES


@pytest.mark.parametrize("name", FIRES)
def test_it_fires_in_its_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule and pass fires in the program that is named for it."""
    free_prices("out of loops", monkeypatch.setattr)
    free_rules(monkeypatch.setattr)
    if name not in fired_in(FIRES[name]):  # programs are others than they were: where to look now
        raise AssertionError(f"elsewhere: {next((seed for seed in range(1500) if name in fired_in(seed)), 'never')}")


def fired_in(seed: int) -> frozenset[str]:
    """What fires in a program."""
    with jax.enable_x64(is_wide(seed)), user_settings(), jax.enable_checks(False):
        return pair_of(draw_site(seed, is_wide(seed))).fired


def test_the_rules_are_those_that_ship() -> None:
    """No rule that comes with Aerogel is left out."""
    named = {x.name for x in vars(rules).values() if isinstance(x, rules.Rule | rules.PrimitiveRule)}
    assert named | {rule.name for rule in rules.default} == {rule.name for rule in CATALOGUE}


def test_a_wrong_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is a ten-thousandth too large is found in eight programs."""

    @ag.rule(exactness="reassociates", reason="it is wrong", name="too-large")
    def tanh(x: Any) -> Any:
        return jnp.tanh(x)

    tanh.to(lambda x: 1.0001 * jnp.sign(x) * (1 - 2 / (jnp.exp(2 * jnp.abs(x)) + 1)))
    monkeypatch.setattr(sys.modules[__name__], "CATALOGUE", CATALOGUE + tanh)
    assert failures(list(range(8)))
