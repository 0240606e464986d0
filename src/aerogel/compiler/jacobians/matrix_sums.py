"""The cotangent of a matrix that a loop multiplies with, summed up after the loop: a product of what its steps stack.

Each step of a backward loop adds outer products to the cotangent, one for each use of the matrix. Taken one by one and
after the loop they are an outer product of small rank.
"""

from aerogel._jax import Jaxpr

from ..hoisting.sink import Sum, contracted, find_sums, sink
from ..loop import as_loop

LARGEST_RANK = 4  # of what one step adds: that of all steps is then small, too


def with_sums_after(jaxpr: Jaxpr, place: int, smallest: int) -> Jaxpr:
    """The level with the sums of at least so many numbers, that the loop at `place` carries, after the loop.

    The same object if it carries none that are sums of products.
    """
    loop = as_loop(jaxpr.eqns[place])
    if loop is None:
        return jaxpr
    sums = [one for one in find_sums(loop) if loop.finals[one.carry].aval.size >= smallest and _is_thin(one)]
    return sink(loop, sums).apply(jaxpr, place) if sums else jaxpr


def _is_thin(one: Sum) -> bool:
    return one.eqn is not None and contracted(one) <= LARGEST_RANK
