"""What is made of a basis, made without it: a sum of its rows is a push, and a value of short rows a few pulls."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis
from ..known.repeated_rows import operands
from ..level import Edit
from ..program import Builder, is_var
from .basis_rows import BasisRows


@dataclass
class Written:
    """What is made of other rows in place of the matrix's, each value once.

    Attributes:
        size: how many rows there are.
        start: what stands for the matrix.
        values: what stands for values with rows: others to start from, and what is written.
    """

    rows: BasisRows
    size: int
    start: Atom
    values: dict[Var, Atom] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows.entry is None:
            self.values[self.rows.root] = self.start

    def write(self, builder: Builder, xs: Iterable[Var]) -> None:
        """Writes what stands for `xs`, as far as it is not yet written: rows, and sums over them."""
        places = behind(self.rows, xs, self.values)
        made = [v for place in places for v in self.rows.level.eqns[place].outvars]
        read, earlier = reads(self.rows, places), self._earlier(places)

        def make(start: Any, *atoms: Any) -> list[Any]:
            env = through(self.rows, places, start, dict(zip((*read, *earlier), atoms, strict=True)), self.size)
            return [env[v] for v in made]

        if places:
            atoms = builder.call(make, self.start, *read, *(self.values[x] for x in earlier))
            self.values.update(zip(made, atoms, strict=True))

    def _earlier(self, places: Iterable[int]) -> list[Var]:
        read = (x for place in places for x in self.rows.level.eqns[place].invars)
        return list(dict.fromkeys(x for x in read if is_var(x) and x in self.values))


def pushes(rows: BasisRows, places: Iterable[int], written: dict[Any, Written]) -> Iterator[Edit]:
    """Weighted sums of rows as the map of the weights: L(t).

    `written` gets what is written for each t: by the variable and the dimension that is summed up.
    """
    for place in places:
        eqn, k = rows.level.eqns[place], rows.sums[place]
        builder, (out,), summed = Builder(eqn), eqn.outvars, eqn.invars[k]
        assert is_var(summed)
        weights, c = _weights(eqn, k)
        key = (weights, c) if weights is None or is_var(weights) else place
        free = () if weights is None else tuple(n for d, n in enumerate(weights.aval.shape) if d != c)
        if key not in written:
            written[key] = Written(rows, prod(free), _weighted(builder, rows, weights, c))
        written[key].write(builder, [summed])
        (result,) = builder.call(_laid_out(rows, summed, k, free, out), written[key].values[summed])
        yield in_its_place(builder, place, [result])


def _weights(eqn: JaxprEqn, k: int) -> tuple[Atom | None, int]:
    """What the rows in operand `k` are weighted with, and along which of its dimensions."""
    if eqn.primitive.name != "dot_general":
        return None, 0
    return eqn.invars[1 - k], eqn.params["dimension_numbers"][0][1 - k][0]


def _weighted(builder: Builder, rows: BasisRows, weights: Atom | None, c: int) -> Atom:
    """The sum of the matrix's own rows."""
    size = 1 if weights is None else weights.aval.size // rows.count

    def start(matrix: Any, *given: Any) -> Any:
        t = jnp.moveaxis(given[0], c, -1) if given else lax.full((rows.count,), 1, matrix.dtype)
        return starting(rows, matrix, lax.reshape(t, (size, rows.count)))

    return builder.call(start, rows.root, *([] if weights is None else [weights]))[0]


def starting(rows: BasisRows, matrix: Any, weights: Any) -> Any:
    """What stands for the matrix when its rows are summed up with each row of `weights`."""
    if rows.entry is not None:
        weights = lax.dot_general(weights, matrix, (((1,), (rows.dim,)), ((), ())), precision=lax.Precision.HIGHEST)
    return weights if rows.dim == 0 else weights.T


def _laid_out(rows: BasisRows, summed: Var, k: int, free: Sequence[int], out: Var) -> Callable[[Any], Any]:
    axis = rows.axes[summed].dim

    def lay_out(total: Any) -> Any:
        rest = [n for d, n in enumerate(total.shape) if d != axis]
        moved = jnp.moveaxis(total, axis, 0 if k else -1)
        shape = (*free, *rest) if k else (*rest, *free)
        return lax.convert_element_type(lax.reshape(moved, shape), out.aval.dtype)

    return lay_out


def in_its_place(builder: Builder, place: int, results: Sequence[Atom]) -> Edit:
    """The edit that puts what was built for the equation at `place` there."""
    outs = builder.like.outvars
    made: dict[Var, Atom] = {v: builder.as_weak_as(v, x) for v, x in zip(outs, results, strict=True)}
    return Edit(place, frozenset((place,)), builder.eqns, made, frozenset((place,)))


def pulled(rows: BasisRows, place: int) -> Edit:
    """A value with rows of few entries, made of the transpose of the map."""
    eqn = rows.level.eqns[place]
    builder, (out,) = Builder(eqn), eqn.outvars
    places = behind(rows, [out])
    read = reads(rows, places)
    dim, width = rows.axes[out].dim, rows.width(out)
    entries = tuple(n for d, n in enumerate(out.aval.shape) if d != dim)
    cotangent = rows.axes[out].resize(out.aval.shape, 1)

    def pull(matrix: Any, *consts: Any) -> Any:
        # Of a linear map the derivative anywhere; JAX's transposes want what is linear in equations of its own.
        env = dict(zip(read, consts, strict=True))
        zeros = lax.full(Axis(rows.dim).resize(matrix.shape, 1), 0, matrix.dtype)
        _, back = jax.vjp(lambda e: through(rows, places, e, env, 1)[out], zeros)
        if width == 1:
            (columns,) = back(lax.full(cotangent, 1, out.aval.dtype))
        else:
            basis = lax.reshape(jnp.eye(width, dtype=out.aval.dtype), (width, *cotangent))
            columns = jax.vmap(lambda ct: back(ct)[0])(basis)
        columns = lax.reshape(columns, (*entries, zeros.size))
        if rows.entry is not None:
            both = (((len(entries),), (1 - rows.dim,)), ((), ()))
            columns = lax.dot_general(columns, matrix, both, precision=lax.Precision.HIGHEST)
        whole = jnp.moveaxis(columns, -1, dim)
        return lax.convert_element_type(whole, out.aval.dtype)

    (result,) = builder.call(pull, rows.root, *read)
    return in_its_place(builder, place, [result])


def behind(rows: BasisRows, xs: Iterable[Atom], written: Collection[Var] = ()) -> tuple[int, ...]:
    """The places that make `xs` of the matrix, and of what is written."""
    found: set[int] = set()
    stack = [*xs]
    while stack:
        y = stack.pop()
        place = rows.level.made_by.get(y, -1) if is_var(y) and y not in written else -1
        if place in rows.made and place not in found:
            found.add(place)
            stack += rows.level.eqns[place].invars
    return tuple(sorted(found))


def reads(rows: BasisRows, places: Iterable[int]) -> list[Var]:
    """What the equations at `places` read besides rows."""
    read = (x for place in places for x in rows.level.eqns[place].invars)
    return list(dict.fromkeys(x for x in read if is_var(x) and x not in rows.axes))


def through(rows: BasisRows, places: Iterable[int], start: Any, read: Mapping[Var, Any], size: int) -> dict[Var, Any]:
    """`size` rows of what the equations at `places` make of as many in place of the matrix's.

    Args:
        start: the rows of the matrix.
        read: the values of `reads(rows, places)`, and `size` rows of those that are not made here.
    """
    env = {**read, rows.root: start} if rows.entry is None else {**read}
    for place in places:
        eqn, answer = rows.level.eqns[place], rows.made[place]
        inputs = operands(eqn, rows.read(place), answer.ins, env, size)
        if rows.entry is not None and rows.entry[0] == place:
            inputs[rows.entry[1]] = start
        env.update(zip(eqn.outvars, answer.block(0, size, *inputs), strict=True))
    return env
