"""Prices under which whatever may move does, however small: what the cost model keeps apart meets in such programs."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from aerogel import _jax
from aerogel.compiler import rules
from aerogel.compiler.excerpts import classes, counts
from aerogel.compiler.fusion import choose, producers
from aerogel.compiler.hoisting import hoist_plan, hoistable, sink, turned_constants
from aerogel.compiler.kept import Kept
from aerogel.compiler.kernels.one_kernel import Price
from aerogel.compiler.loops import loop_ends
from aerogel.compiler.networks import contractions
from aerogel.compiler.passes import (
    branch_guard,
    excerpts,
    full_sums,
    half_spectra,
    in_place,
    inverse_products,
    loop_contraction,
    loop_hoist,
    loop_kernel,
    loop_split,
    loop_words,
    reroll,
    streaming,
)
from aerogel.compiler.passes import loop_ends as passes_loop_ends
from aerogel.compiler.readers import own_broadcasts, sums_of_rows, weighted_sums
from aerogel.compiler.residuals import residuals
from aerogel.compiler.rolled import ghosts, offsets, shifts
from aerogel.compiler.rules import (
    bfloat16_products,
    convolution_rows,
    cumulative,
    diagonal_sums,
    extrema,
    lookups,
    selection,
    small_determinants,
    small_products,
    small_solves,
    turned_products,
    unit_sums,
)
from aerogel.compiler.short_axes import short_axes
from aerogel.compiler.streams import odd_rows
from aerogel.compiler.streams.stream_plan import Sizes

# The package has a rule of this name in its place.
elementary = import_module("aerogel.compiler.rules.elementary.rules")

DIRECTIONS = ("into loops", "out of loops")
# All rules that come with Aerogel; those that do not run by default come first.
_BY_NAME = [rules.inverse_times]
CATALOGUE = rules.rule_set([*_BY_NAME, *rules.default])


def free_prices(direction: str, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Changes the compiler's prices, by `put(module, name, value)`, which may be pytest's `monkeypatch.setattr`.

    Args:
        direction: "into loops" (and the loop hoist does as ever), or "out of loops" first, then in.
        put: sets an attribute that exists.
    """
    for module, name, value in (*_INTO, *(_OUT if direction == "out of loops" else ())):
        assert hasattr(module, name), f"{module.__name__} has no {name} any more: it would move nothing"
        put(module, name, value)


def free_rules(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Changes the sizes from which rules and passes of the catalogue pay: they then act on arrays of a few entries.

    What rules remember of sites goes, now and when `put` takes all of it back.
    """
    for module, name, value in _SIZES:
        assert hasattr(module, name), f"{module.__name__} has no {name} any more: it would free nothing"
        put(module, name, value)
    for rule in CATALOGUE:
        put(rule, "kept", Kept(rule.kept.most))


def _is_anything(eqn: Any, heavy: Callable[[Any], bool] = hoistable.is_heavy) -> bool:
    return heavy(eqn) or (eqn.primitive.name not in hoistable._NEVER and bool(eqn.invars))


_INTO: tuple[tuple[Any, str, Any], ...] = (
    (loop_split, "SMALLEST_OUTPUT", 0),
    (loop_split, "QUIET_SHARE", 0.0),
    (choose, "MOVE_SECONDS", 0.0),
    (choose, "seconds_more_inside", lambda *_: 0.0),
    (choose, "repeated_seconds", lambda *_: {}),
    (choose, "seconds_to_cross", lambda *_: 1.0),
    (producers, "SMALLEST_INPUT", 0),
    (producers, "SMALLEST_STEP", 0),
    (residuals, "SMALLEST_SAVING", 1),
    (streaming, "sizes_of", lambda *_: Sizes(32, at_any_price=True)),
    (short_axes, "FEWEST", 1),
    (odd_rows, "is_halved", lambda shape, _: next((n for n in shape if n != 1), 2) % 2 == 1),
    (short_axes, "AMPLIFIED", 1),
    (short_axes, "pays_at_once", lambda *_: True),
    (short_axes, "fills_registers", lambda *_: False),
    (short_axes, "sums_matrices", lambda *_: False),
    (contractions, "MARGIN", 1.5),
    (contractions, "LEAST_SECONDS", -1.0),
    (contractions, "MORE_BYTES", 1 << 60),
    (loop_ends, "LEAST_BYTES", 1),
    (turned_constants, "LEAST_SECONDS", -1.0),
    (turned_constants, "TURNED_SECONDS", 0.0),
    (turned_constants, "ROWS", range(1, 1 << 60)),
    (loop_words, "LEAST_SECONDS", -1.0),
    (shifts, "LEAST_SECONDS", -1.0),
    (shifts, "LEAST_BESIDE_SINES", -1.0),
    (shifts, "SHORTEST_ROW", 0),
    (shifts, "FEWEST_ROLLS", 1),
    (ghosts, "LEAST_SECONDS", -1.0),
    (ghosts, "SHORTEST_ROW", 0),
    (offsets, "LEAST_SECONDS", -1.0),
    (offsets, "FEWEST_OFFSETS", 2),
    (passes_loop_ends, "LONGEST_COPIED", 0),
    (loop_kernel, "FEWEST_STEPS", 0),
    (loop_kernel, "moves_few", lambda *_: False),
    (loop_kernel, "price", lambda *_: Price(1.0, 0.0)),
)
_OUT: tuple[tuple[Any, str, Any], ...] = (
    (hoist_plan, "TRUST", 1e9),
    (hoist_plan, "LEAST_SECONDS", -1.0),
    (hoist_plan, "LEAST_SHARE", -1e12),
    (hoist_plan, "SHORTEST_LOOP", 0.0),
    (hoist_plan, "FREE_BYTES", 1 << 60),
    (hoist_plan, "FREE_STEPS", 1 << 60),
    (hoist_plan, "steps_saved", lambda *_: 1.0),
    (hoist_plan, "is_heavy", _is_anything),
    (hoist_plan, "_widens", lambda *_: False),
    (hoist_plan, "_summed_over_time", lambda *_: False),
    (loop_hoist, "LEAST_SECONDS", -1.0),
    (loop_hoist, "SHORT_LOOP", 0.0),
    (loop_hoist, "SHORT_LOOP_OF_CALLS", 0.0),
    (loop_hoist, "moves_few", lambda *_: False),
    (loop_hoist, "SHORTEST_LOOP", 0.0),
    (loop_contraction, "LARGEST_SHARE", 1e9),
    (sink, "LONGEST_CONTRACTION", 1 << 60),
    (loop_hoist, "_leaves", lambda *_: True),
    (loop_hoist, "_frees", lambda *_: True),
    (loop_hoist, "seconds_saved", lambda *_: 1.0),
)
# Of a sine: there is one in most gradients, and its code takes longer to compile than all the rest.
MANY = 30
_SIZES: tuple[tuple[Any, str, Any], ...] = (
    (contractions, "MARGIN", 1e9),
    (contractions, "LEAST_SECONDS", -1e9),
    (inverse_products, "FEW_ROWS", 0),
    (inverse_products, "WIDEST_OF_SEVERAL", 4),
    (inverse_products, "WIDEST_ON_CPU", 4),
    (reroll, "FEWEST", 4),
    (reroll, "FEWEST_PRODUCTS", 4),
    (branch_guard, "LEAST_SECONDS", 0.0),
    (branch_guard, "LEAST_RATIO", 0.0),
    (counts, "FEWEST", 1),
    (counts, "FEWEST_PLACES", 1),
    (classes, "FEWEST", 1),
    (classes, "FEWEST_SUMS", 1),
    (excerpts, "LEAST_SECONDS", -1.0),
    (excerpts, "MARGIN", 1.5),
    (excerpts, "FUSED", frozenset(("slice", "dynamic_slice", "pad"))),
    (full_sums, "MARGIN", 1.5),
    (full_sums, "LEAST_SECONDS", -1.0),
    (full_sums, "FEWEST", 1),
    (in_place, "SMALLEST", 1),
    (in_place, "LEAST_RATIO", 0),
    (extrema, "SHORTEST_SEARCH", 4),
    (extrema, "FEWEST_SEARCHED", 1),
    (hoistable, "LEAST_GAIN_OF_LOOPS", 0.0),
    (lookups, "FEWEST", 1),
    (lookups, "FEWEST_OF_MORE", 1),
    (lookups, "FEWEST_EVENLY", 1),
    (lookups, "MANY", 1),
    (lookups, "SHORT", 4),
    (selection, "FEWEST", 1),
    (selection, "FEWEST_OF_ONE", 1),
    (selection, "MOST", 1),
    (cumulative, "SHORTEST", 2),
    (cumulative, "FEWEST", 1),
    (cumulative, "FEWEST_IN_A_LOOP", 2),
    (cumulative, "SHORTEST_LOOP", 2),
    (cumulative, "FEWEST_ROWS", 3),
    (cumulative, "MOST_REVERSED", 1 << 30),
    (own_broadcasts.Sums, "_seconds", lambda *_: 1.0),
    (own_broadcasts, "LEAST_ROW", 0),
    (own_broadcasts, "LONG_ROW", 0),
    (sums_of_rows, "WIDE_BYTES", 40),
    (sums_of_rows, "LEAST_ENTRIES", 1),
    (sums_of_rows, "LEAST_ROW", 1),
    (weighted_sums, "LEAST_SIDE", 2),
    (weighted_sums, "LEAST_ENTRIES", 4),
    (diagonal_sums, "FEWEST", 1),
    (small_determinants, "FEWEST", 1),
    (small_solves, "FEWEST", 1),
    (small_products, "_of_batch", lambda *_: None),
    (small_products, "_of_rows", lambda *_: None),
    (bfloat16_products, "FEWEST", 1),
    (bfloat16_products, "FEWEST_OF_ONE", 1),
    (bfloat16_products, "FEWEST_TURNED", 1),
    (bfloat16_products, "multiplies_bfloat16", lambda _: True),
    (turned_products, "NARROW", MANY),
    (turned_products, "WIDER", 0),
    (turned_products, "LONGER", 0),
    (turned_products, "LONGER_FOR_MANY", 0),
    (turned_products, "EVEN", 0),
    (turned_products, "HALF", 0),
    (turned_products, "UNEVEN", 0),
    (turned_products, "LONG_IN_LOOPS", 0),
    (turned_products, "FEWEST_LAST", 0),
    (turned_products, "WIDE_LAST", 0),
    (turned_products, "FEWEST", 1),
    (turned_products, "COPIED", range(2, 4)),
    (turned_products, "WIDE", 1),
    (unit_sums, "FEWEST", 1),
    (_jax, "HAS_VECTOR_SUMS", False),
    (_jax, "WIDENS_BFLOAT16_STACKS", True),
    (elementary, "FEWEST", MANY),
    (elementary, "FEWEST_POWERS", MANY),
    (elementary, "FEWEST_SINES", MANY),
    (elementary, "FEWEST_ALONE", MANY),
    (elementary, "FEWEST_SINES_ALONE", MANY),
    (elementary, "FEWEST_POWERS_ALONE", MANY),
    (half_spectra, "FEWEST", 1),
    (half_spectra, "MARGIN", 1e9),
    (convolution_rows, "FEWEST_PRODUCTS", 1),
    (convolution_rows, "FEWEST_OF_A_ROW", 1),
    (convolution_rows, "SHORTEST_RUN", 1),
    (convolution_rows, "SHORTEST_SUMMED_RUN", 1),
    (convolution_rows, "NS_OF_THE_LIBRARY", 1e9),
    (convolution_rows, "NS_OF_ITS_SUMS", 1e9),
)
