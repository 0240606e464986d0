"""Measure one case: natural, optimised and expert form, alternately, and hold the ratios against the case's bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ._case import Bounds, Case
from ._timing import Measured, Quartiles, describe_args, largest_difference, measure

SCREENING_ROUNDS = 7
PAGE_BYTES = 4096
SAME_TIME = 1.03  # expert forms this close are equally fast: then the one with less memory is the yardstick


@dataclass(frozen=True)
class Row:
    """One line of the table. Ratios are paired; the `optimised` fields are None where no optimiser ran.

    `same_code` names the forms that XLA compiled to the program that the optimised form became: their ratio is 1, and
    what was measured beside it is the noise.
    """

    case: str
    mode: str
    types: str
    best_hand: str
    rounds: int
    natural_seconds: Quartiles
    hand_seconds: Quartiles
    natural_over_hand: Quartiles
    natural_bytes: int
    hand_bytes: int
    hand_difference: float
    optimised_seconds: Quartiles | None = None
    natural_over_optimised: Quartiles | None = None
    optimised_over_hand: Quartiles | None = None
    optimised_bytes: int | None = None
    optimised_difference: float | None = None
    same_code: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    bounds: Bounds | None = None
    notes: str = ""
    hand_forms: tuple[tuple[str, float, int], ...] = ()


def run_case(case: Case, optimise: Callable[[Callable], Callable] | None, *, quick: bool = False) -> list[Row]:
    """Rows of one case, one per mode. `optimise=None` measures natural against expert form only."""
    args = case.args()
    return [
        run_mode(case, mode, natural, hand, bounds, args, optimise, quick)
        for mode, (natural, hand, bounds) in case.modes().items()
    ]


def run_mode(case, mode, natural, hand, bounds, args, optimise, quick) -> Row:
    best, screened = fastest(hand, args)
    forms = {"natural": natural, "hand": hand[best]}
    if optimise is not None:
        forms["optimised"] = optimise(natural)
    effort = {"min_rounds": 7, "budget_s": 0.5, "limit_s": 10.0} if quick else {}
    measured = measure(forms, args, **effort)
    row = row_of(case, mode, args, best, measured, bounds, screened)
    if row.missed and not quick:  # a busy neighbour can fake a miss, not hide one: look again, longer
        row = row_of(case, mode, args, best, measure(forms, args, min_rounds=60, budget_s=8.0), bounds, screened)
    return row


def fastest(hand: dict[str, Callable], args: tuple) -> tuple[str, Measured | None]:
    """Name of the fastest form (of equally fast ones, the one with the least memory), and what the screening saw."""
    if len(hand) == 1:
        return next(iter(hand)), None
    screened = measure(hand, args, min_rounds=SCREENING_ROUNDS, budget_s=0.7, limit_s=15.0)
    median = {name: screened.time(name).median for name in hand}
    close = [name for name in hand if median[name] <= SAME_TIME * min(median.values())]
    return min(close, key=lambda name: screened.temp_bytes[name]), screened


def row_of(case, mode, args, best, m: Measured, bounds: Bounds, screened: Measured | None) -> Row:
    row = Row(
        case=case.name,
        mode=mode,
        types=describe_args(args),
        best_hand=best,
        rounds=len(m.seconds["natural"]),
        natural_seconds=m.time("natural"),
        hand_seconds=m.time("hand"),
        natural_over_hand=m.ratio("natural", "hand"),
        natural_bytes=m.temp_bytes["natural"],
        hand_bytes=m.temp_bytes["hand"],
        hand_difference=largest_difference(m.outputs["natural"], m.outputs["hand"]),
        bounds=bounds,
        notes=case.notes,
        hand_forms=tuple((n, screened.time(n).median, screened.temp_bytes[n]) for n in screened.seconds)
        if screened
        else (),
    )
    if "optimised" not in m.seconds:
        return row
    found = {
        "optimised_seconds": m.time("optimised"),
        "natural_over_optimised": m.ratio("natural", "optimised"),
        "optimised_over_hand": m.ratio("optimised", "hand"),
        "optimised_bytes": m.temp_bytes["optimised"],
        "optimised_difference": largest_difference(m.outputs["natural"], m.outputs["optimised"]),
        "same_code": same_code(m),
    }
    return Row(**{**vars(row), **found, "missed": misses(m, bounds)})


def same_code(m: Measured) -> tuple[str, ...]:
    """The forms that are, compiled, the same program as the optimised one."""
    return tuple(name for name in ("natural", "hand") if m.code[name] == m.code["optimised"])


def misses(m: Measured, bounds: Bounds) -> tuple[str, ...]:
    """A sentence per bound that the medians (times) or the plans (memory) break."""
    found = []
    over_hand, over_natural = m.ratio("optimised", "hand").median, m.ratio("optimised", "natural").median
    # a partial result per step is no stack: below a hundredth of what the natural form needs, ratios say nothing, nor
    # do they within a page of memory
    smallest = max(PAGE_BYTES, m.temp_bytes["natural"] // 100)
    temp = {name: max(size, smallest) for name, size in m.temp_bytes.items()}
    memory_over_hand = temp["optimised"] / temp["hand"]
    saving = m.temp_bytes["natural"] / max(m.temp_bytes["optimised"], 1)
    same = same_code(m)
    if bounds.over_hand is not None and over_hand > bounds.over_hand and "hand" not in same:
        found.append(f"time {over_hand:.3f} of hand, bound {bounds.over_hand:g}")
    if bounds.over_natural is not None and over_natural > bounds.over_natural and "natural" not in same:
        found.append(f"time {over_natural:.3f} of natural, bound {bounds.over_natural:g}")
    if bounds.speedup is not None and m.ratio("natural", "optimised").median < bounds.speedup:
        found.append(f"{m.ratio('natural', 'optimised').median:.2f} times faster, bound {bounds.speedup:g}")
    if bounds.memory_over_hand is not None and memory_over_hand > bounds.memory_over_hand:
        found.append(f"memory {memory_over_hand:.2f} of hand, bound {bounds.memory_over_hand:g}")
    if bounds.memory_saving is not None and saving < bounds.memory_saving:
        found.append(f"memory {saving:.1f} times smaller, bound {bounds.memory_saving:g}")
    return tuple(found)
