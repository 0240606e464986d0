"""The network of a product or a sum: what it is made of, through everything that only multiplies, moves and adds up."""

from collections.abc import Callable, Sequence
from itertools import product

from aerogel._jax import Atom, JaxprEqn

from ..known.records import Facts, Identity, OneHot, Repeated, the
from ..level import Level
from ..program import is_var
from ..record import record
from .label_orders import mixed
from .network import Network, NotOneNetwork
from .network_reader import FLOATS, Reader, dot, is_plain

ROOTS = frozenset(("dot_general", "reduce_sum", "gather"))
MASKS = frozenset(("mul", "select_n"))
MASKED = frozenset("dot_general transpose mul neg div reshape".split())  # what makes a product, or moves or scales one
MOST_SUMS = 3  # multiplied out: 8 networks


def is_root(level: Level, facts: Facts, eqn: JaxprEqn) -> bool:
    """Whether networks are looked for from an equation on: a sum of products, a diagonal read, or masked off one.

    `(A @ B) * eye(n)`, which the derivative of `A * eye(n)` holds, needs the diagonal of the product alone. And the
    transpose of a product, which no product would make, but another order of the factors may; or rows that are picked,
    which come in any order.
    """
    if eqn.primitive.name == "transpose":
        x = eqn.invars[0]
        made = level.maker(x) if is_var(x) and len(level.readers(x)) == 1 else None
        return made is not None and (_mixes(made, eqn.params["permutation"]) or _picks(facts, made))
    if eqn.primitive.name not in MASKS:
        return eqn.primitive.name in ROOTS
    if not any(the(Identity, facts.of(x)) for x in eqn.invars if is_var(x)):
        return False
    makers = (level.eqns[level.made_by[x]] for x in eqn.invars if is_var(x) and x in level.made_by)
    return any(one.primitive.name in MASKED for one in makers)


def _picks(facts: Facts, eqn: JaxprEqn) -> bool:
    """Whether an equation multiplies by one-hot rows."""
    return eqn.primitive.name == "dot_general" and any(the(OneHot, facts.of(x)) for x in eqn.invars)


def _mixes(eqn: JaxprEqn, permutation: Sequence[int]) -> bool:
    """Whether a transpose puts dimensions of one operand of a product between those of the other: no product does."""
    if eqn.primitive.name != "dot_general":
        return False
    contract, batch = eqn.params["dimension_numbers"]
    free = [len(x.aval.shape) - len(contract[k]) - len(batch[k]) for k, x in enumerate(eqn.invars)]
    sides = [""] * len(batch[0]) + ["left"] * free[0] + ["right"] * free[1]
    shape = eqn.outvars[0].aval.shape
    return mixed([sides[d] for d in permutation if sides[d] and shape[d] > 1])


def network_of(
    level: Level,
    facts: Facts,
    place: int,
    closed: frozenset[int],
    opened: set[int],
    terms: Sequence[int] | None = None,
) -> Network | None:
    """The network of the equation at `place`, as far down as it goes; None if it is none.

    Args:
        level: the level it is on.
        facts: what is known of its values.
        place: of a product or a sum.
        closed: places of equations that are not to be taken in.
        opened: takes the places of those that would be taken in, if they can be.
        terms: of each sum of an identity and a constant that is met, which of the two is taken (0 or 1; 0 where none is
            given); None to leave these sums as they are.
    """
    eqn = level.eqns[place]
    aval = eqn.outvars[0].aval
    if not is_root(level, facts, eqn) or str(aval.dtype) not in FLOATS or aval.weak_type:
        return None
    if (eqn.primitive.name not in ("gather", "select_n", "transpose") and not is_plain(eqn)) or not aval.size:
        return None

    def read(reader: Reader) -> bool:
        reader.network.out = tuple(reader.network.label(n) for n in aval.shape)
        return reader.take(place, reader.network.out, 0)

    return _read_whole(read, lambda whole: Reader(level, facts, Network(), aval.dtype, closed | whole, opened, terms))


def _read_whole(read: Callable[[Reader], bool], reader: Callable[[frozenset[int]], Reader]) -> Network | None:
    """The network that `read` makes in a reader that takes sums which are multiplied by themselves as they are.

    `sum((x @ w) ** 2)` is a sum of squares, and so is the diagonal of `(x @ w) @ (x @ w).T`. Multiplied out it is
    `x @ (w @ w.T) @ x`: terms that cancel where `x @ w` is small, and then few digits are left, or less than nothing,
    of which no root can be taken. In `x @ x @ x` no dimension of a factor meets itself.
    """
    whole: frozenset[int] = frozenset()
    while True:
        current = reader(whole)
        try:
            if not read(current):
                return None
            current.network.finish()
        except NotOneNetwork:
            return None
        if not current.twice:
            return current.network
        whole |= current.twice


@record
class Sum:
    """Networks that are added up, or joined along dimension `dim` of the result."""

    networks: tuple[Network, ...]
    dim: int | None = None


def sum_of(level: Level, facts: Facts, place: int, closed: frozenset[int], opened: set[int]) -> Sum | None:
    """The networks of the equation at `place`: one, or one for each of the pieces that an operand is joined from.

    `concatenate([a, b]) @ W` is `a @ W1 + b @ W2`. That is for the better where a piece repeats a smaller value (the
    features of a node at each of its edges): its product is made once and repeated.
    """
    eqn = level.eqns[place]
    joined = _joined(level, facts, eqn) if eqn.primitive.name == "dot_general" else None
    if joined is not None:
        opened.add(joined[1])
    if joined is None or joined[1] in closed:
        network = network_of(level, facts, place, closed, opened)
        return None if network is None else Sum((network,))
    side, maker = joined
    made = level.eqns[maker]
    contract, batch = eqn.params["dimension_numbers"]
    dim = made.params["dimension"]
    other = contract[1 - side][list(contract[side]).index(dim)] if dim in contract[side] else None
    at = None
    if other is None:
        free = [d for d in range(len(made.outvars[0].aval.shape)) if d not in contract[side] and d not in batch[side]]
        left = len(eqn.invars[0].aval.shape) - len(contract[0]) - len(batch[0])
        at = len(batch[0]) + free.index(dim) + (left if side else 0)
    networks, start = [], 0
    for piece in made.invars:
        size = piece.aval.shape[dim]
        network = _piece_network(level, facts, place, closed, opened, side, piece, other, (start, start + size), at)
        start += size
        if network is None:
            return None
        network.places.add(maker)
        networks.append(network)
    return Sum(tuple(networks), at)


def expanded(level: Level, facts: Facts, place: int, closed: frozenset[int], opened: set[int]) -> Sum | None:
    """The equation at `place` multiplied out where a factor is an identity plus a constant; None if none is.

    `(eye(n) - 1 / n) @ A` is `A` less the means of its columns.
    """
    first = network_of(level, facts, place, closed, opened, ())
    if first is None or not 0 < first.sums <= MOST_SUMS:
        return None
    every = product((0, 1), repeat=first.sums)
    networks = [network_of(level, facts, place, closed, opened, terms) for terms in every]
    same = [one for one in networks if one is not None and (one.sums, one.places) == (first.sums, first.places)]
    return Sum(tuple(same)) if len(same) == len(networks) else None


def _joined(level: Level, facts: Facts, eqn: JaxprEqn) -> tuple[int, int] | None:
    """Which operand is joined from pieces, one of which is repeated, and the place where."""
    for side, x in enumerate(eqn.invars):
        maker = level.made_by.get(x, -1) if is_var(x) else -1
        if maker < 0 or level.eqns[maker].primitive.name != "concatenate":
            continue
        made = level.eqns[maker]
        dim, batch = made.params["dimension"], eqn.params["dimension_numbers"][1][side]
        if dim not in batch and any(_repeats(level, facts, piece, dim) for piece in made.invars):
            return side, maker
    return None


def _repeats(level: Level, facts: Facts, x: Atom, dim: int) -> bool:
    """Whether a value repeats a smaller one, or each row of one, along other dimensions than `dim`."""
    made = level.maker(x)
    if made is not None and made.primitive.name == "reshape":  # of [n, repeats, features], as `jnp.repeat` makes it
        before, after = made.invars[0].aval.shape, x.aval.shape
        if before[len(before) - len(after[dim:]) :] == after[dim:]:
            x, dim = made.invars[0], dim + len(before) - len(after)
    elif made is not None and made.primitive.name == "tile":
        return any(rep > 1 for d, rep in enumerate(made.params["reps"]) if d != dim)
    repeats = (r.dim for r in facts.of(x) if isinstance(r, Repeated))
    return any(x.aval.shape[d] > 1 for d in repeats if d != dim)


def _piece_network(
    level: Level,
    facts: Facts,
    place: int,
    closed: frozenset[int],
    opened: set[int],
    side: int,
    piece: Atom,
    other: int | None,
    rows: tuple[int, int],
    at: int | None,
) -> Network | None:
    """The network of a product with one piece in the place of an operand.

    Args:
        side: which operand the piece stands for.
        other: the dimension of the other operand of which `rows` belong to the piece, if it is one that is summed over.
        at: the dimension of the result that is the piece's part of it, if it is not.
    """
    eqn = level.eqns[place]
    aval = eqn.outvars[0].aval
    if str(aval.dtype) not in FLOATS or aval.weak_type or not is_plain(eqn) or not aval.size:
        return None
    operands: list[Atom] = list(eqn.invars)
    operands[side] = piece
    window = None if other is None else (other, *rows)
    shape = [rows[1] - rows[0] if d == at else n for d, n in enumerate(aval.shape)]

    def read(reader: Reader) -> bool:
        reader.network.out = tuple(map(reader.network.label, shape))
        reader.network.places.add(place)
        return dot(reader, eqn, reader.network.out, 0, operands, {1 - side: window})

    return _read_whole(read, lambda whole: Reader(level, facts, Network(), aval.dtype, closed | whole, opened))
