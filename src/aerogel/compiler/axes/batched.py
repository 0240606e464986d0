"""Primitives with leading batch dimensions: linear algebra, Fourier transforms, random numbers of a key each."""

from collections.abc import Mapping

from ..._jax import JaxprEqn, prng_name
from . import words
from .answer import Axis, Mapped, No
from .elementwise import ELEMENTWISE
from .entry import Answer, Entry
from .labels import Labels, labelled
from .rebind import shape_of

# How many trailing dimensions of the first input are the matrix or vector of one problem.
LINEAR_ALGEBRA = {
    "cholesky": 2,
    "eig": 2,
    "eigh": 2,
    "hessenberg": 2,
    "householder_product": 2,
    "lu": 2,
    "lu_pivots_to_permutation": 1,
    "ormqr": 2,
    "qr": 2,
    "schur": 2,
    "svd": 2,
    "symmetric_product": 2,
    "tridiagonal": 2,
}


def _leading(eqn: JaxprEqn, batch_rank: int) -> Labels:
    def dims(atom: object) -> tuple[int | None, ...]:
        return tuple(d if d < batch_rank else None for d in range(len(shape_of(atom))))

    return Labels(tuple(map(dims, eqn.invars)), tuple(map(dims, eqn.outvars)))


def _problems(core_rank: int) -> Entry:
    return labelled(lambda eqn: _leading(eqn, len(shape_of(eqn.invars[0])) - core_rank))


def _solve(eqn: JaxprEqn) -> Labels:
    """Many right-hand sides (or left-hand ones) of one matrix are solved for apart from each other."""
    *matrix, b = (shape_of(v) for v in eqn.invars)
    rank = len(b)
    free = rank - 1 if eqn.params.get("left_side", True) else rank - 2
    b_dims = tuple(d if d < rank - 2 or d == free else None for d in range(rank))
    matrix_dims = tuple(tuple(d if d < rank - 2 else None for d in range(len(shape))) for shape in matrix)
    return Labels((*matrix_dims, b_dims), (b_dims,))


def _fft(eqn: JaxprEqn) -> Labels:
    return _leading(eqn, len(shape_of(eqn.invars[0])) - len(eqn.params["fft_lengths"]))


def _keys_to_words(eqn: JaxprEqn) -> Labels:
    return _leading(eqn, len(shape_of(eqn.invars[0])))


def _words_to_keys(eqn: JaxprEqn) -> Labels:
    return _leading(eqn, len(shape_of(eqn.outvars[0])))


def _per_key(entry: Entry) -> Entry:
    """Only threefry draws for each key what it would draw alone; the others look at the batch as a whole."""

    def refusal(eqn: JaxprEqn) -> No | None:
        for atom in (*eqn.invars, *eqn.outvars):
            name = prng_name(atom.aval)
            if name not in (None, "threefry2x32"):
                return No(f"`{eqn.primitive.name}` of {name} keys depends on the whole batch")
        return None

    def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int) -> Answer:
        return refusal(eqn) or entry.along(eqn, ins, length)

    def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
        return refusal(eqn) or entry.along_output(eqn, outs, length)

    return Entry(along, along_output)


def _words(entry: Entry) -> Entry:
    """Of many keys, each draws its own; of one, each word is drawn by its number."""

    def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
        return (entry.along_output if shape_of(eqn.invars[0]) else words.along_output)(eqn, outs, length)

    return Entry(entry.along, along_output)


ENTRIES: dict[str, Entry] = {
    **{name: _problems(core_rank) for name, core_rank in LINEAR_ALGEBRA.items()},
    "triangular_solve": labelled(_solve),
    "tridiagonal_solve": labelled(_solve),
    "fft": labelled(_fft),
    "random_bits": _words(_per_key(labelled(_keys_to_words))),
    "random_split": _per_key(labelled(_keys_to_words)),
    "random_fold_in": _per_key(ELEMENTWISE),
    "random_gamma": _per_key(ELEMENTWISE),
    "random_seed": _per_key(ELEMENTWISE),
    "random_unwrap": labelled(_keys_to_words),
    "random_wrap": labelled(_words_to_keys),
}
