"""What steps of few lanes take longer: LLVM unrolls them whole, and makes no vector code of exponentials then."""

from collections.abc import Collection

from aerogel._jax import JaxprEqn

# Steps of fewer entries. One of an Adam step of 32 entries and seven arrays took 56 ns.
NARROW = 64
_SECONDS_PER_ARRAY = 4e-9
# For each entry, on one core (38,400 entries in steps of 32, 40 and 48: exponentials and logarithms took 1.6 to 2.9 of
# plain JAX's time, quotients 0.8 to 0.95; in steps of 64 and 80 0.4 to 0.6 all of them).
_SECONDS_PER_ENTRY = {"exp": 5e-9, "exp2": 5e-9, "log": 5e-9, "logistic": 5e-9, "div": 8e-10}


def seconds_more_in(lanes: int, steps: int, arrays: int, work: Collection[JaxprEqn]) -> float:
    """Seconds that steps of so many entries take longer than wider ones, reading and writing so many arrays."""
    if lanes >= NARROW:
        return 0.0
    return steps * (arrays * _SECONDS_PER_ARRAY + lanes * sum(map(_of_entry, work)))


def _of_entry(eqn: JaxprEqn) -> float:
    divides = eqn.primitive.name == "integer_pow" and eqn.params["y"] < 0
    return _SECONDS_PER_ENTRY.get("div" if divides else eqn.primitive.name, 0.0)
