"""What is much larger inside than what goes in and comes out, and an axis along which it can be cut into blocks.

A *stream* is a set of equations around large values, an axis that they all map over (or reduce), and the *phase* in
which each can run: a value that needs the end of one loop over the blocks is read in the next. Growing a stream decides
nothing; `streaming.py` makes loops of it.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes import Axis, Mapped, Reduced
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import nbytes
from ..cost.primitives import DEAR
from ..disjoint import DisjointSets
from ..exactness import Exactness
from ..level import Level
from ..program import is_var
from ..record import record

# Monoids whose result does not depend on the order.
ORDERLESS = ("max", "min", "and", "or", "xor", "argmax", "argmin")
# What is so many times smaller than what is made of it may exist.
SMALLER = 16
# What has one in so many of the entries of a block is nearly as large.
NEARLY = 2
# What moves entries and computes nothing.
MOVES = frozenset("broadcast_in_dim reshape squeeze expand_dims".split())


@record
class Search:
    """A comparison that looks for the places of a minimum or maximum over the blocks, which an earlier loop found.

    Attributes:
        operand: the operand that holds the minimum, by position.
        reduction: the place of the equation that found it.
        moves: the places of the equations that give it the shape of the operand, in order.
    """

    operand: int
    reduction: int
    moves: tuple[int, ...]


@dataclass
class Stream:
    """Equations that run block by block along one axis.

    Attributes:
        length: of the axis.
        large: the values that should not exist as a whole.
        where: where the axis stands in the values that the blocks make, and in large ones from outside.
        answers: by place, what each equation is along the axis.
        refusals: by place, why an equation that touches a large value is not among them.
        phase: by place, in which of the loops an equation runs first.
        compared: small values that a large one is compared with for equality (the gradient of a maximum looks for its
            place so). A loop that makes the large one again makes these again too: in another kernel the last bit may
            be another, and nothing is equal.
        searches: by place, comparisons with what is known at the end of a loop only. A later loop makes the minimum of
            each block again, and compares with it in the blocks where the earlier one found the minimum of all.
    """

    level: Level
    length: int
    large: set[Var]
    where: dict[Var, Axis] = field(default_factory=dict)
    answers: dict[int, Mapped | Reduced] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    phase: dict[int, int] = field(default_factory=dict)
    compared: set[Var] = field(default_factory=set)
    searches: dict[int, Search] = field(default_factory=dict)

    def maker(self, x: Atom, axis: Axis | None) -> int | None:
        """The place of the equation whose blocks of `x` along `axis` are wanted; None for what comes from outside."""
        if axis is None or isinstance(x, Literal) or self.where.get(x) != axis:
            return None
        place = self.level.made_by.get(x)
        return place if place in self.answers else None

    def reads(self, place: int) -> Iterator[tuple[Atom, Axis | None]]:
        """What an equation reads, and where the axis stands in it."""
        return zip(self.level.eqns[place].invars, self.answers[place].ins, strict=True)

    def blocks_of(self, place: int) -> list[Var]:
        """The values that an equation makes block by block."""
        answer = self.answers[place]
        if isinstance(answer, Reduced):
            return []
        outs = zip(self.level.eqns[place].outvars, answer.outs, strict=True)
        return [v for v, axis in outs if axis is not None]

    @property
    def phases(self) -> int:
        """How many loops it takes."""
        return 1 + max(self.phase.values(), default=-1)

    @property
    def is_of_examples(self) -> bool:
        """Whether nothing joins what the indices of the axis give: each is a problem of its own."""
        return not any(isinstance(answer, Reduced) for answer in self.answers.values())

    @property
    def exactness(self) -> Exactness:
        """What it may do to the numbers: sums over the blocks come in another order."""
        sums = [a for a in self.answers.values() if isinstance(a, Reduced) and a.monoid.name not in ORDERLESS]
        return Exactness.REASSOCIATES if sums else Exactness.BITWISE

    @property
    def crossing(self) -> list[Var]:
        """Large values that exist nevertheless: something reads the whole of them."""
        made = [v for place in self.answers for v in self.blocks_of(place) if v in self.large]
        return [v for v in made if any(not self.reads_blocks(k, v) for k in self.level.readers(v))]

    def reads_blocks(self, place: int, v: Var) -> bool:
        """Whether an equation is of the stream, and reads blocks of `v` and nothing else of it."""
        return place in self.answers and all(axis == self.where.get(v) for x, axis in self.reads(place) if x is v)


def made_again(stream: Stream, x: Var, size: int) -> list[JaxprEqn]:
    """The equations that make again, in each block, what all blocks of `size` indices share.

    None, but for what is nearly as large as a block, cheap, and made of what is small: a mask that heads share would
    exist as long as the loop runs. (Beside it scores may have the column of a sink.)
    """
    level = stream.level
    block = max(v.aval.size for v in stream.large) // stream.length * size
    if NEARLY * x.aval.size < block or any(k not in stream.answers for k in level.readers(x)):
        return []
    places: set[int] = set()
    stack = [x]
    while stack:
        v = stack.pop()
        place = level.made_by.get(v)
        if place in places or v.aval.size * SMALLER <= x.aval.size:
            continue
        if place is None or place in stream.answers or not is_cheap(level.eqns[place]):
            return []
        places.add(place)
        stack += [y for y in level.eqns[place].invars if is_var(y)]
    return [level.eqns[place] for place in sorted(places)]


Group = tuple[frozenset[Var], frozenset[int]]


def group_of(level: Level, seed: Var, least_bytes: int) -> Group:
    """The group of a value, of values of at least so many bytes."""
    return next(one for one in groups(level, lambda v: _bytes(v) >= least_bytes) if seed in one[0])


def groups(level: Level, is_large: Callable[[Var], bool]) -> list[Group]:
    """The large values of a level, those that equations have in common together, and the places of these equations."""
    sets = DisjointSets()
    touched: list[tuple[int, Var]] = []
    for place, eqn in enumerate(level.eqns):
        values = [v for v in (*eqn.outvars, *eqn.invars) if is_var(v) and v in level.made_by and is_large(v)]
        for v in values:
            sets.join(v, values[0])
        if values:
            touched.append((place, values[0]))
    found: dict[Var, tuple[set[Var], set[int]]] = {}
    for v in list(sets.parent):
        found.setdefault(sets.find(v), (set(), set()))[0].add(v)
    for place, v in touched:
        found[sets.find(v)][1].add(place)
    return [(frozenset(values), frozenset(places)) for values, places in found.values()]


def _bytes(v: Var) -> int:
    return nbytes(v.aval)


def scope_of(level: Level, touching: Collection[int]) -> frozenset[int]:
    """`touching`, and what is light and on the way from one of them to another by light equations."""
    after: set[Var] = set()
    below: list[bool] = []
    for place, eqn in enumerate(level.eqns):
        reached = place in touching or (is_light(eqn) and any(is_var(x) and x in after for x in eqn.invars))
        below.append(reached)
        if reached:
            after.update(eqn.outvars)
    before: set[Var] = set()
    scope: set[int] = set()
    for place in range(len(level.eqns) - 1, -1, -1):
        eqn = level.eqns[place]
        if place in touching or (below[place] and any(v in before for v in eqn.outvars)):
            before.update(x for x in eqn.invars if is_var(x))
            scope.add(place)
    return frozenset(scope)


REDUCTIONS = frozenset(f"reduce_{name}" for name in "sum max min prod and or".split())
VIEWS = frozenset("broadcast_in_dim reshape squeeze expand_dims transpose iota slice custom_jvp_call".split())
LIGHT = frozenset(ELEMENTWISE) | VIEWS | REDUCTIONS


def is_light(eqn: JaxprEqn) -> bool:
    """Whether an equation costs little beside a product or a loop."""
    return eqn.primitive.name in LIGHT


def is_cheap(eqn: JaxprEqn) -> bool:
    """Whether an equation costs little in any number: none of its operations is a dear one.

    A quotient by one number is none.
    """
    name = eqn.primitive.name
    by_number = name == "div" and eqn.invars[1].aval.size == 1
    return is_light(eqn) and (name not in DEAR or by_number) and not eqn.effects


def results_of(stream: Stream) -> list[set[int]]:
    """For each phase, the places of the equations whose results its loop gives; what they need, it makes again."""
    roots = [set[int]() for _ in range(stream.phases)]
    for place, phase in stream.phase.items():
        whole = isinstance(stream.answers[place], Reduced)
        read = any(not stream.reads_blocks(k, v) for v in stream.blocks_of(place) for k in stream.level.readers(v))
        if whole or read:
            roots[phase].add(place)
    for phase in range(stream.phases - 1, -1, -1):
        for place in needed(stream, roots, phase):
            for x, axis in stream.reads(place):
                maker = stream.maker(x, axis)
                if maker is not None and is_kept(stream, x, maker, phase):
                    roots[stream.phase[maker]].add(maker)
    return roots


def is_kept(stream: Stream, x: Atom, maker: int, phase: int) -> bool:
    """Whether a loop reads the blocks of `x` that an earlier one made, instead of making them again."""
    return stream.phase[maker] < phase and x not in stream.large and x not in stream.compared


def needed(stream: Stream, roots: list[set[int]], phase: int) -> list[int]:
    """The places of the equations that a loop runs, in order."""
    found: set[int] = set()
    stack = list(roots[phase])
    while stack:
        place = stack.pop()
        if place in found:
            continue
        found.add(place)
        for x, axis in stream.reads(place):
            maker = stream.maker(x, axis)
            if maker is not None and not is_kept(stream, x, maker, phase):
                stack.append(maker)
    return sorted(found)


def read_outside(stream: Stream, v: Var) -> bool:
    """Whether something besides the stream reads a value that its equations make."""
    return any(k not in stream.answers for k in stream.level.readers(v))


def made_whole(stream: Stream, place: int) -> list[Var]:
    """What an equation makes beside its blocks, the same in each: a loop sums up its whole state, say."""
    answer = stream.answers[place]
    outs = () if isinstance(answer, Reduced) else zip(stream.level.eqns[place].outvars, answer.outs, strict=True)
    return [v for v, axis in outs if axis is None]
