"""Whether a rewrite pays: what is written against what goes, by the model of the machine."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..._errors import UsageError
from ..._jax import JaxprEqn, Var
from ..cost.account import kernel_cost
from ..cost.kernels import Kernel, kernels
from ..cost.machine import Machine
from ..cost.seconds import kernel_seconds
from ..program import is_var, schedule
from .graph import Graph, Node
from .site import Site

Profit = None | Literal["model"] | Callable[[Site], Any]
MARGIN = 0.05  # the part of the time that has to be saved: the model is no more exact


def profit_of(profit: Any, function: str) -> Profit:
    """What says whether a rule pays.

    Raises:
        UsageError: it is something else.
    """
    if profit is None or profit == "model" or callable(profit):
        return profit
    wanted = 'None, "model", or a function of the site'
    raise UsageError(argument="profit", got=profit, wanted=wanted, function=function)


def loss(
    profit: Profit, site: Site, graph: Graph, nodes: Sequence[Node], results: Sequence[Any], new: Any
) -> str | None:
    """The reason why a rewrite does not pay; None if it does.

    Args:
        profit: what the rule says about it.
        site: where it applies.
        graph: the level.
        nodes: the equations that are matched.
        results: their values that are replaced.
        new: the jaxpr that is written.
    """
    if profit is None:
        return None
    if profit != "model":
        said = profit(site)
        return said if isinstance(said, str) else None if said else "it does not pay here"
    saved = _gone(graph, nodes, results)
    inputs = list(dict.fromkeys(x for eqn in saved for x in eqn.invars if is_var(x)))
    made = {v for eqn in saved for v in eqn.outvars}
    before = kernels(saved, [x for x in inputs if x not in made], [v for v in results if v in made])
    after = kernels(new.eqns, [*new.constvars, *new.invars], new.outvars)
    return _compared(before, after, site.machine)


def _compared(before: list[Kernel], after: list[Kernel], machine: Machine) -> str | None:
    ours, theirs = (sum(kernel_seconds(one, machine) for one in found) for found in (after, before))
    if ours <= (1 - MARGIN) * theirs:
        return None
    moved, spared = (sum(kernel_cost(one).bytes_moved for one in found) for found in (after, before))
    if moved > spared:
        return f"costs {_megabytes(moved)}, saves {_megabytes(spared)}"
    return f"costs {_microseconds(ours)}, saves {_microseconds(theirs)}"


def _gone(graph: Graph, nodes: Sequence[Node], results: Sequence[Any]) -> list[JaxprEqn]:
    """The equations among the matched ones that nobody needs any more, in an order in which they can be run."""
    own = {id(node.eqn): node for node in nodes}
    ordered = schedule([node.eqn for node in own.values()])
    gone: dict[int, JaxprEqn] = {}
    for eqn in reversed(ordered):
        readers = (one for v in eqn.outvars if v not in results and isinstance(v, Var) for one in graph.readers(v))
        if all(one is not None and id(one.eqn) in gone for one in readers):
            gone[id(eqn)] = eqn
    return list(gone.values())[::-1]


def _megabytes(amount: int) -> str:
    return f"{amount / 1e6:.1f} MB" if amount >= 1e5 else f"{amount / 1e3:.1f} kB"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
