"""Prices under which whatever may move does, however small: what the cost model keeps apart meets in such programs."""

from collections.abc import Callable
from typing import Any

from aerogel.compiler import choose, contractions, hoist_plan, hoistable, producers, residuals, short_axes
from aerogel.compiler.passes import loop_hoist, loop_split, streaming
from aerogel.compiler.stream_plan import Sizes

DIRECTIONS = ("into loops", "out of loops")


def free_prices(direction: str, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Changes the compiler's prices, by `put(module, name, value)`, which may be pytest's `monkeypatch.setattr`.

    Args:
        direction: "into loops" (and the loop hoist does as ever), or "out of loops" first, then in.
        put: sets an attribute that exists.
    """
    for module, name, value in (*_INTO, *(_OUT if direction == "out of loops" else ())):
        assert hasattr(module, name), f"{module.__name__} has no {name} any more: it would move nothing"
        put(module, name, value)


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
    (short_axes, "FEWEST_SUMMED", 1),
    (short_axes, "AMPLIFIED", 1),
    (contractions, "MARGIN", 1.5),
    (contractions, "LEAST_SECONDS", -1.0),
    (contractions, "MORE_BYTES", 1 << 60),
)
_OUT: tuple[tuple[Any, str, Any], ...] = (
    (hoist_plan, "TRUST", 1e9),
    (hoist_plan, "LEAST_SECONDS", -1.0),
    (hoist_plan, "LEAST_SHARE", -1e12),
    (hoist_plan, "FREE_BYTES", 1 << 60),
    (hoist_plan, "FREE_STEPS", 1 << 60),
    (hoist_plan, "steps_saved", lambda *_: 1.0),
    (hoist_plan, "is_heavy", _is_anything),
    (hoist_plan, "_widens", lambda *_: False),
    (hoist_plan, "_summed_over_time", lambda *_: False),
    (loop_hoist, "LEAST_SECONDS", -1.0),
    (loop_hoist, "LONGEST_CONTRACTION", 1 << 60),
    (loop_hoist, "_leaves", lambda *_: True),
    (loop_hoist, "_frees", lambda *_: True),
    (loop_hoist, "seconds_saved", lambda *_: 1.0),
)
