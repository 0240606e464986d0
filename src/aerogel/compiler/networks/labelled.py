"""Values of a level whose dimensions carry labels, and what they are views of."""

from dataclasses import dataclass, field

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal

from ..known.records import Constant, Facts, the
from ..level import Level
from ..record import record
from .network import Labels, Network
from .triangle_masks import Dims, stretched

FLOATS = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
VIEWS = frozenset("transpose broadcast_in_dim reshape squeeze expand_dims copy".split())


@record
class Operand:
    """A value, and the labels of its dimensions."""

    atom: Atom
    dims: Dims

    @property
    def labels(self) -> Labels:
        """All labels, in order."""
        return tuple(one for dim in self.dims for one in dim)

    def read(self, x: Atom) -> "Operand":
        """What an equation reads that works entry by entry and makes this."""
        return Operand(x, stretched(x, self.dims))


@dataclass
class Labelled:
    """Looks at a level; `network` knows the sizes of labels, and which were split."""

    level: Level
    facts: Facts
    network: Network = field(default_factory=Network)

    def maker(self, x: Operand) -> tuple[JaxprEqn | None, str]:
        """The equation that makes a value, and how it is called in a report."""
        eqn = self.level.maker(x.atom)
        return eqn, "an argument" if eqn is None else f"`{eqn.primitive.name}`"

    def resolved(self, x: Operand) -> Operand:
        """An operand with the labels that stand for those that were split."""
        return Operand(x.atom, tuple(map(self.network.resolved, x.dims)))

    def factors(self, eqn: JaxprEqn, out: Dims) -> tuple[list[Labels], tuple[Operand, Operand]]:
        """New labels for what is summed over in a product whose result is labelled, and its labelled operands."""
        contract, batch = eqn.params["dimension_numbers"]
        left = eqn.invars[0].aval.shape
        inner = [self.network.label(left[d]) for d in contract[0]]
        found: list[Operand] = []
        start = len(batch[0])
        for side, x in enumerate(eqn.invars):
            mine = dict(zip(contract[side], inner, strict=True))
            mine |= zip(batch[side], out, strict=False)
            free = [d for d in range(len(x.aval.shape)) if d not in mine]
            mine |= zip(free, out[start:], strict=False)
            start += len(free)
            found.append(Operand(x, tuple(mine[d] for d in range(len(x.aval.shape)))))
        return inner, (found[0], found[1])

    def number(self, x: Atom) -> float | None:
        """The number that every entry is, if it is one."""
        constant, eqn = the(Constant, self.facts.of(x)), self.level.maker(x)
        if constant is None and eqn is not None and eqn.primitive.name in ("convert_element_type", "broadcast_in_dim"):
            number = self.number(eqn.invars[0])
            return number if number is not None and np.isinf(number) else None  # which facts do not convert
        return None if constant is None or isinstance(constant.value, complex) else float(constant.value)

    def widened(self, x: Operand) -> Operand:
        """What an operand is a view of, perhaps in more bits."""
        while (found := self.viewed(x, only_wider=True)) is not None:
            x = found
        return x

    def viewed(self, x: Operand, only_wider: bool = False) -> Operand | None:
        """What a value is a view of, if it is one: moved, repeated, or converted between floats."""
        eqn = self.level.maker(x.atom)
        if eqn is None or len(eqn.invars) != 1 or isinstance(eqn.invars[0], Literal):
            return None
        (y,), name, dims = eqn.invars, eqn.primitive.name, x.dims
        if eqn.params.get("sharding") is not None or (name == "reshape" and eqn.params.get("dimensions") is not None):
            return None
        if name == "convert_element_type":
            bits, wide = (FLOATS.get(str(one.aval.dtype), 0) for one in (y, x.atom))
            return Operand(y, dims) if bits and wide and (bits < wide or not only_wider) else None
        if name == "transpose":
            order = list(eqn.params["permutation"])
            return Operand(y, tuple(dims[order.index(d)] for d in range(len(order))))
        if name == "broadcast_in_dim":
            to = eqn.params["broadcast_dimensions"]
            return Operand(y, tuple(() if n == 1 else dims[int(d)] for n, d in zip(y.aval.shape, to, strict=True)))
        if name in ("reshape", "squeeze", "expand_dims"):
            return Operand(y, tuple(self.network.cut([one for dim in dims for one in dim], y.aval.shape)))
        return Operand(y, dims) if name == "copy" else None
