"""Gathers from a diagonal, and scatters to one, at indices that count its places: labels of what they read."""

from collections.abc import Sequence

from aerogel._jax import Atom, JaxprEqn

from ..known.records import Constant, Counted, Facts, the
from .network import Labels

Dims = tuple[Labels, ...]


def gathered_diagonal(eqn: JaxprEqn, facts: Facts, dims: Dims) -> Dims | None:
    """Labels of what a gather reads the diagonal of, by counted indices; those of its result are `dims`."""
    numbers, (x, indices) = eqn.params["dimension_numbers"], eqn.invars
    counted = _counter(facts, indices)
    picked = numbers.start_index_map
    if counted is None or tuple(sorted(picked)) != tuple(sorted(numbers.collapsed_slice_dims)):
        return None
    outer = [dim for d, dim in enumerate(dims) if d not in numbers.offset_dims]
    inner = [dim for d, dim in enumerate(dims) if d in numbers.offset_dims]
    labelled = _dealt(
        x.aval.shape, picked, numbers.operand_batching_dims, numbers.start_indices_batching_dims,
        outer, inner, counted,
    )  # fmt: skip
    sizes = eqn.params["slice_sizes"]
    if labelled is None or any(
        n != (1 if d in picked or d in numbers.operand_batching_dims else m)
        for d, (n, m) in enumerate(zip(sizes, x.aval.shape, strict=True))
    ):
        return None
    return None if any(x.aval.shape[d] != indices.aval.shape[counted] for d in picked) else labelled


def scattered_diagonal(eqn: JaxprEqn, facts: Facts, dims: Dims) -> tuple[Dims, list[Labels]] | None:
    """Labels of what is written into zeros, or added to them, at counted indices, and those that are one then.

    That is a diagonal matrix, whose dimensions are labelled `dims`.
    """
    if eqn.params["update_jaxpr"] is not None and eqn.primitive.name == "scatter":
        return None
    numbers, (x, indices, updates) = eqn.params["dimension_numbers"], eqn.invars
    counted, zero = _counter(facts, indices), the(Constant, facts.of(x))
    picked = numbers.scatter_dims_to_operand_dims
    if counted is None or zero is None or zero.value != 0 or numbers.operand_batching_dims:
        return None
    if tuple(sorted(picked)) != tuple(sorted(numbers.inserted_window_dims)) or len(indices.aval.shape) != 2:
        return None
    if any(x.aval.shape[d] != indices.aval.shape[counted] for d in picked):
        return None
    rest = iter([dim for d, dim in enumerate(dims) if d not in picked])
    window = numbers.update_window_dims
    labelled = tuple(next(rest) if d in window else dims[picked[0]] for d in range(len(updates.aval.shape)))
    return labelled, [dims[d] for d in picked]


def _counter(facts: Facts, indices: Atom) -> int | None:
    """The dimension along which all indices are 0, 1, 2, ...; None if they are not."""
    counted = the(Counted, facts.of(indices))
    if counted is None or (counted.scale, counted.offset) != (1, 0):
        return None
    return counted.dim if counted.dim != len(indices.aval.shape) - 1 else None


def _dealt(
    shape: Sequence[int],
    picked: Sequence[int],
    batched: Sequence[int],
    indices_batched: Sequence[int],
    outer: Sequence[Labels],
    inner: Sequence[Labels],
    counted: int,
) -> Dims | None:
    """Labels of the operand of a gather of the diagonal along dimensions `picked`."""
    if set(indices_batched) | {counted} != set(range(len(outer))) or counted in indices_batched:
        return None
    rest = iter(inner)
    found = []
    for d in range(len(shape)):
        if d in picked:
            found.append(outer[counted])
        elif d in batched:
            found.append(outer[indices_batched[list(batched).index(d)]])
        else:
            found.append(next(rest))
    return tuple(found)
