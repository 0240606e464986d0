"""What users say about values that the compiler cannot see: that a matrix is positive definite, say."""

from typing import Any

import jax.numpy as jnp

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel._jax import JaxprEqn

from ..axes.labels import Labels, labelled
from ..axes.table import register

ENTRYWISE = ("finite", "non_negative", "ones", "positive", "zero")
OF_ROWS = ("sorted",)
OF_MATRICES = ("diagonal", "identity", "lower_triangular", "orthogonal", "spd", "symmetric", "upper_triangular")
_IMPLIED = {
    "diagonal": ("symmetric", "lower_triangular", "upper_triangular"),
    "identity": ("diagonal", "orthogonal", "spd", "non_negative", "finite"),
    "ones": ("positive", "finite"),
    "positive": ("non_negative",),
    "spd": ("symmetric",),
    "zero": ("non_negative", "finite"),
}
assume_p = _jax.marker_primitive("assume")


def assume(x: Any, *facts: str) -> Any:
    """`x`, of which the compiler may take for granted what you say; nothing checks it.

    It serves rules: those that ask for a fact, and those whose exactness is "assumes". It costs nothing, and says
    nothing about derivatives of `x`. Under `vmap` it is said of each example.

    Args:
        x: an array.
        facts: of its entries "finite", "non_negative", "positive", "zero", "ones"; along the last dimension "sorted";
            of matrices, which are the last two dimensions, "symmetric", "spd" (symmetric and positive definite),
            "diagonal", "identity", "orthogonal", "lower_triangular", "upper_triangular".

    Raises:
        UsageError: a fact is another word, or `x` is no matrix and the fact is about matrices.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.assume(jnp.eye(2), "spd").shape
    (2, 2)
    """
    words = (*ENTRYWISE, *OF_ROWS, *OF_MATRICES)
    unknown = next((fact for fact in facts if fact not in words), None)
    if unknown is not None or not facts:
        raise UsageError(argument="facts", got=unknown, wanted=sorted(words), function="assume")
    x = jnp.asarray(x)
    if x.ndim < 2 and not set(facts) <= {*ENTRYWISE, *OF_ROWS[: x.ndim]}:
        said = next(fact for fact in facts if fact not in (*ENTRYWISE, *OF_ROWS[: x.ndim]))
        wanted = f'a matrix, or stacked matrices, for "{said}"' if said in OF_MATRICES else f'an array for "{said}"'
        raise UsageError(argument="x", got=x, wanted=wanted, function="assume")
    return assume_p.bind(x, facts=tuple(sorted(closed(frozenset(facts)))))


def closed(facts: frozenset[str]) -> frozenset[str]:
    """The facts, and those that follow from them."""
    found, todo = set(facts), list(facts)
    while todo:
        for fact in _IMPLIED.get(todo.pop(), ()):
            if fact not in found:
                found.add(fact)
                todo.append(fact)
    return frozenset(found)


def _labels(eqn: JaxprEqn) -> Labels:
    """Along dimensions of a matrix, a part is not what was said of the whole."""
    rank, facts = len(eqn.invars[0].aval.shape), set(eqn.params["facts"])
    free = rank - (2 if not facts.isdisjoint(OF_MATRICES) else 1 if not facts.isdisjoint(OF_ROWS) else 0)
    dims = tuple(d if d < free else None for d in range(rank))
    return Labels((dims,), (dims,))


register(assume_p, labelled(_labels))
