"""Finding buffers that a loop walks along: each step touches rows near a place of its own, and no others.

`b.at[i].set(f(b[i - 1]))` reads the row behind the one that it writes. The gradient of that loop reads its own row,
writes zeros there, and adds to the next one. In both the rows that later steps need are few: they can be carried, and
all others are inputs and outputs of the steps.
"""

from enum import Enum
from functools import cached_property

from aerogel._jax import Atom, DropVar, JaxprEqn, Var

from ..known.facts import Affine
from ..loop import Loop
from ..program import Makers, Readers, is_var
from ..record import record
from .slots import added_to, read_of, write_of

# From the first row that a step touches to its last: that many rows less one are carried.
MOST_ROWS = 5


class How(Enum):
    """What an equation does to a row."""

    READ = "read"
    SET = "set"
    ADD = "add"


@record
class Touch:
    """One equation that touches a row.

    Attributes:
        eqn: it makes a row (`READ`), or the buffer anew.
        how: what it does.
        buffer: what it reads: the buffer as it then is.
        row: how many steps later the row is the step's own one; negative of rows that earlier steps had.
        value: what is written or added.
        is_fresh: whether the row is still as it was at the start of the step, but for what was added to it.
    """

    eqn: JaxprEqn
    how: How
    buffer: Var
    row: int
    value: Atom | None
    is_fresh: bool


@record
class Track:
    """A carried buffer that the steps walk along.

    Attributes:
        carry: which one it is.
        buffer: its variable in the body.
        place: of row 0, as a function of the step.
        ahead: 1 or -1, from the place of one step to that of the next.
        dim: the dimension of the places.
        touches: in the order of the body.
        replaced: the rows that nothing is left of at the end of a step.
        is_read: whether anyone reads the buffer after the loop.
    """

    carry: int
    buffer: Var
    place: Affine
    ahead: int
    dim: int
    touches: tuple[Touch, ...]
    replaced: frozenset[int]
    is_read: bool

    @cached_property
    def rows(self) -> range:
        """From the row that is touched last to the one that is touched first, as they pass."""
        rows = [touch.row for touch in self.touches]
        return range(min(rows), max(rows) + 1)

    @cached_property
    def written(self) -> range:
        """The rows from the last one that is written to the first one."""
        rows = [touch.row for touch in self.touches if touch.how is not How.READ]
        return range(min(rows), max(rows) + 1)

    @property
    def only_adds(self) -> bool:
        """Whether a step adds to one row, and does nothing else."""
        return len(self.touches) == 1 and self.touches[0].how is How.ADD

    def enters(self, row: int) -> bool:
        """Whether a step needs what stands in a row at its start."""
        if self.only_adds or row not in self.rows:
            return False
        if any(touch.row == row and touch.is_fresh and touch.how is not How.SET for touch in self.touches):
            return True
        return row not in self.replaced and (self.enters(row - 1) or (self.is_read and row in self.written))

    @cached_property
    def left(self) -> range:
        """The rows whose last values are those that the last step left."""
        return self.written[1:] if self.is_read else range(0)

    @cached_property
    def carried(self) -> tuple[int, ...]:
        """The rows that a step is given by the one before."""
        return tuple(row for row in self.rows[:-1] if self.enters(row) or row + 1 in self.left)

    def at(self, row: int) -> Affine:
        """The place of a row."""
        return Affine(self.place.scale, self.place.offset + self.ahead * row)

    @property
    def what(self) -> str:
        """For the report."""
        kinds = {touch.how for touch in self.touches}
        if len(self.rows) > 1:
            return "the rows around its own are carried by each step, not all of the buffer"
        if How.READ in kinds:
            return "what every step takes from its own index is an input of the step"
        did = "adds" if self.only_adds else "writes"
        return f"what every step {did} at its own index is an output of the step"


def find_tracks(loop: Loop, facts: dict[Var, Affine], readers: Readers, makers: Makers, read: Readers) -> list[Track]:
    """The tracks of a loop.

    Args:
        loop: the loop.
        facts: which of its body's values are affine in the step.
        readers: who reads what in the body, and `makers`, who makes it.
        read: who reads what around the loop.
    """
    found = (_track(loop, k, facts, readers, makers, read) for k in range(len(loop.body_carry)))
    return [track for track in found if track is not None]


def _track(
    loop: Loop, k: int, facts: dict[Var, Affine], readers: Readers, makers: Makers, read: Readers
) -> Track | None:
    buffer, last = loop.body_carry[k], loop.next_carry[k]
    if not buffer.aval.shape or not is_var(last) or last is buffer:
        return None
    if sum(x is last for x in loop.body.outvars) != 1:
        return None
    touches: list[Touch] = []
    place, dim, ahead = Affine(0, 0), 0, 1
    replaced: dict[Var, frozenset[int]] = {buffer: frozenset()}
    waiting = dict.fromkeys(readers.get(buffer, ()), buffer)
    while waiting:
        index = min(waiting)
        before = waiting.pop(index)
        found = _touch(loop, index, before, facts, readers, makers) if index >= 0 else None
        if found is None:
            return None
        how, at, along, value = found
        if not touches:
            place, dim, ahead = at, along, -at.scale if loop.reverse else at.scale
        row, eqn = (at.offset - place.offset) * ahead, loop.body.eqns[index]
        if (along, at.scale) != (dim, place.scale):
            return None
        touches.append(Touch(eqn, how, before, row, value, row not in replaced[before]))
        if how is not How.READ:
            (out,) = eqn.outvars
            replaced[out] = replaced[before] | {row} if how is How.SET else replaced[before]
            waiting.update((i, out) for i in readers.get(out, ()) if (i, out) != (-1, last))
    final = loop.finals[k]
    is_read = not isinstance(final, DropVar) and final in read
    if last not in replaced:
        return None
    track = Track(k, buffer, place, ahead, dim, tuple(touches), replaced[last], is_read)
    return track if len(track.rows) <= MOST_ROWS else None


def _touch(
    loop: Loop, index: int, buffer: Var, facts: dict[Var, Affine], readers: Readers, makers: Makers
) -> tuple[How, Affine, int, Atom | None] | None:
    """What an equation of the body does to a row of the buffer: how, at which place along which dimension."""
    eqn = loop.body.eqns[index]
    touched = read_of(eqn, buffer, facts, loop.length)
    if touched is not None:
        return How.READ, *touched, None
    written = write_of(eqn, buffer, facts, loop.length) or added_to(loop, eqn, buffer, facts, readers, makers)
    if written is None:
        return None
    place, dim, value, adds = written
    return How.ADD if adds else How.SET, place, dim, value
