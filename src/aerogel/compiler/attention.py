"""Softmax attention, as it is read from a level: from the product with the values up to that of queries and keys.

Dimensions carry labels (`network.py`), so that it does not matter how they are ordered, split or mapped over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal

from .level import Level
from .network import Labels, Network, NotOneNetwork
from .program import is_var
from .records import Constant, Facts, the
from .triangle_masks import Dims, Triangle, TriangleMasks, stretched

FLOATS = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
VIEWS = frozenset("transpose broadcast_in_dim reshape squeeze expand_dims copy stop_gradient".split())
SUMS = frozenset("add sub mul div neg convert_element_type".split())
CHOICES = frozenset("select_n log max min".split())
# What a softmax makes of it beside any score of 16 bits is 0.
LOWEST = -1e4
DEEPEST = 40


class NotAttention(Exception):
    """What looks like an attention is none that is known; says why."""


@dataclass(frozen=True)
class Operand:
    """A value, and the labels of its dimensions."""

    atom: Atom
    dims: Dims

    @property
    def labels(self) -> Labels:
        """All labels, in order."""
        return tuple(one for dim in self.dims for one in dim)


@dataclass
class Attention:
    """An attention.

    Attributes:
        place: of the equation that makes the result.
        network: knows the sizes of labels.
        out: the labels of the result.
        q, k, v: what is multiplied.
        keys: the labels of the keys.
        depth: the labels that queries and keys are multiplied along.
        bias: what is added to the scaled scores, or None.
        causal: the labels (of queries, of keys) of which no key that comes later is seen, or None.
        scale: what the scores are multiplied by.
        scores: the equation that makes them.
        places: of the equations between the operands and the result.
    """

    place: int
    network: Network
    out: Dims
    q: Operand
    k: Operand
    v: Operand
    keys: Labels
    depth: Labels
    bias: Operand | None
    causal: tuple[Labels, Labels] | None
    scale: float
    scores: JaxprEqn
    places: frozenset[int]


def read_attention(level: Level, facts: Facts, place: int) -> Attention | None:
    """The attention whose result an equation makes; None where that is nothing like one.

    Raises:
        NotAttention: it is a product with a softmax, and yet not an attention that is known.
    """
    eqn = level.eqns[place]
    if eqn.primitive.name != "dot_general":
        return None
    for side in (0, 1):
        if _is_softmax(level, eqn.invars[side]):
            try:
                return _Reader(level, facts).read(place, side)
            except NotOneNetwork:
                raise NotAttention("a reshape cuts across its dimensions") from None
    return None


def _is_softmax(level: Level, x: Atom) -> bool:
    """Whether a value is a quotient of exponentials, moved and converted."""
    for name in ("div", "exp"):
        eqn = level.maker(x)
        while eqn is not None and (eqn.primitive.name in VIEWS or eqn.primitive.name == "convert_element_type"):
            eqn = level.maker(eqn.invars[0])
        if eqn is None or eqn.primitive.name != name:
            return False
        x = eqn.invars[0]
    return True


@dataclass
class _Reader:
    level: Level
    facts: Facts
    network: Network = field(default_factory=Network)
    places: set[int] = field(default_factory=set)
    scale: float = 1.0
    masks: list[tuple[Operand, bool]] = field(default_factory=list)  # and whether scores are kept where it is true
    biases: list[Operand] = field(default_factory=list)

    def read(self, place: int, side: int) -> Attention:
        eqn = self.level.eqns[place]
        inner, of, out = self._labelled(eqn)
        if len(inner) != 1:
            raise NotAttention("the softmax is taken over several dimensions")
        keys = inner[0]
        s = self._softmax(Operand(eqn.invars[side], of[side]), keys)
        product, dims = self._scores(s)
        depth, operands = self._operands(product, dims)
        first = 0 if set(self._resolved(keys)).isdisjoint(self._all(operands[0])) else 1
        q, k = (self._scaled(operands[i]) for i in (first, 1 - first))
        v = self._widened(Operand(eqn.invars[1 - side], of[1 - side]))
        causal = self._causal()
        if len(self.biases) > 1:
            raise NotAttention("several biases are added to its scores")
        return Attention(
            place,
            self.network,
            self._final(out),
            *(Operand(x.atom, self._final(x.dims)) for x in (q, k, v)),
            keys=self._resolved(keys),
            depth=self._resolved([one for labels in depth for one in labels]),
            bias=Operand(self.biases[0].atom, self._final(self.biases[0].dims)) if self.biases else None,
            causal=None if causal is None else (self._resolved(causal[0]), self._resolved(causal[1])),
            scale=self.scale,
            scores=product,
            places=frozenset(self.places | {place}),
        )

    def _resolved(self, labels: Sequence[int]) -> Labels:
        return self.network.resolved(labels)

    def _final(self, dims: Dims) -> Dims:
        return tuple(map(self._resolved, dims))

    def _all(self, x: Operand) -> Labels:
        return self._resolved(x.labels)

    def _labelled(self, eqn: JaxprEqn) -> tuple[list[Labels], tuple[Dims, Dims], Dims]:
        """New labels for a product: those that are summed over, of both operands, and of the result."""
        shape = eqn.outvars[0].aval.shape
        out = tuple(self.network.label(n) for n in shape)
        inner, operands = self._operands(eqn, out)
        return [labels for labels in inner if labels], (operands[0].dims, operands[1].dims), out

    def _operands(self, eqn: JaxprEqn, out: Dims) -> tuple[list[Labels], tuple[Operand, Operand]]:
        """What is summed over in a product whose result is labelled, and its labelled operands."""
        if eqn.effects or eqn.params.get("out_sharding") is not None:
            raise NotAttention("its layout over devices is asked for")
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

    def _softmax(self, p: Operand, keys: Labels) -> Operand:
        """The scores that a softmax along the keys is taken of."""
        quotient = self._take(self._views(p), "div")
        e, total = (self._views(self._stretched(x, quotient[1])) for x in quotient[0].invars)
        self._check_reduced(total, "reduce_sum", e, keys)
        difference = self._take(self._views(self._of_first(self._take(e, "exp"))), "sub")
        s, most = (self._views(self._stretched(x, difference[1])) for x in difference[0].invars)
        eqn = self.level.maker(most.atom)
        if eqn is not None and eqn.primitive.name == "max":  # `jax.nn.softmax` starts from -inf
            at = next((k for k in (0, 1) if self._number(eqn.invars[k]) == -np.inf), None)
            if at is not None:
                self._note(most.atom)
                most = self._views(self._stretched(eqn.invars[1 - at], most.dims))
        self._check_reduced(most, "reduce_max", s, keys)
        return s

    def _check_reduced(self, reduced: Operand, name: str, of: Operand, keys: Labels) -> None:
        """Raises unless a value is a reduction of another along the keys."""
        eqn, dims = self._take(reduced, name)
        (x,), axes = eqn.invars, [int(d) for d in eqn.params["axes"]]
        kept, shape = iter(dims), x.aval.shape
        full = tuple((keys if shape[d] > 1 else ()) if d in axes else next(kept) for d in range(len(shape)))
        long = [d for d in axes if shape[d] > 1]
        if len(long) != 1 or shape[long[0]] != self.network.sizes[keys[0]]:
            raise NotAttention("the softmax is not taken over the keys")
        found = self._views(Operand(x, full))
        if found.atom is not of.atom or self._final(found.dims) != self._final(of.dims):
            raise NotAttention("the softmax is not taken over the keys")

    def _scores(self, s: Operand) -> tuple[JaxprEqn, Dims]:
        """The product that makes the scores, and its labels; what is done to them on the way is noted."""
        for _ in range(DEEPEST):
            s = self._views(s)
            eqn = self.level.maker(s.atom)
            name = "an argument" if eqn is None else f"`{eqn.primitive.name}`"
            if eqn is None or eqn.primitive.name not in ("mul", "div", "select_n", "add", "dot_general"):
                raise NotAttention(f"its scores are {name}, and not a product of queries and keys")
            self._note(s.atom)
            if eqn.primitive.name == "dot_general":
                return eqn, s.dims
            step = {"select_n": self._masked, "add": self._biased}.get(eqn.primitive.name, self._multiplied)
            s = step(eqn, s.dims)
        raise NotAttention("too much is done to its scores")

    def _multiplied(self, eqn: JaxprEqn, dims: Dims) -> Operand:
        for k in (1, 0) if eqn.primitive.name == "mul" else (1,):
            number = self._number(eqn.invars[k])
            if number and np.isfinite(number):
                self.scale = self.scale * number if eqn.primitive.name == "mul" else self.scale / number
                return self._stretched(eqn.invars[1 - k], dims)
        raise NotAttention("its scores are multiplied by more than one number")

    def _masked(self, eqn: JaxprEqn, dims: Dims) -> Operand:
        which, *cases = eqn.invars
        for k in (0, 1):
            number = self._number(cases[k])
            if number is not None and number * self.scale <= LOWEST and len(cases) == 2:
                self.masks.append((self._stretched(which, dims), k == 0))
                return self._stretched(cases[1 - k], dims)
        raise NotAttention("its scores are chosen between values that are no mask")

    def _biased(self, eqn: JaxprEqn, dims: Dims) -> Operand:
        if self.scale != 1:
            raise NotAttention("its scores are scaled behind what is added to them")
        k = next((k for k in (0, 1) if self._is_product(eqn.invars[k])), None)
        if k is None:
            raise NotAttention("its scores are a sum, and not a product of queries and keys")
        added = self._widened(self._stretched(eqn.invars[1 - k], dims))
        if not self._is_added_mask(added):
            if self._may_mask(added.atom):
                raise NotAttention("what is added to its scores is chosen between values: it may be a mask")
            self.biases.append(added)
        return self._stretched(eqn.invars[k], dims)

    def _is_added_mask(self, x: Operand) -> bool:
        """Whether a bias is 0 where scores are kept and very low elsewhere; it is noted as a mask then."""
        eqn = self.level.maker(x.atom)
        if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
            return False
        values = [self._number(case) for case in eqn.invars[1:]]
        for k in (0, 1):
            low = values[k]
            if low is not None and low <= LOWEST and values[1 - k] == 0:
                self.masks.append((self._stretched(eqn.invars[0], x.dims), k == 0))
                return True
        return False

    def _causal(self) -> tuple[Labels, Labels] | None:
        """The queries and keys of a causal mask; None where there is no mask."""
        masks = TriangleMasks(self.level, self.facts, self._viewed_mask)
        found: set[Triangle] = set()
        for mask, kept in self.masks:
            parts = masks.read(mask.atom, mask.dims)
            if parts is not None and not kept:
                parts = {one.rest for one in parts} if len(parts) == 1 else None
            if parts is None or any(one.by for one in parts):
                raise NotAttention("cuDNN has other numbers in rows that a mask empties: only causal masks are known")
            found |= {Triangle(self._resolved(one.a), self._resolved(one.b), 0) for one in parts}
        if len(found) > 1:
            raise NotAttention("it has several masks")
        return next(((one.a, one.b) for one in found), None)

    def _viewed_mask(self, x: Atom, dims: Dims) -> tuple[Atom, Dims] | None:
        found = self._viewed(Operand(x, dims), only_wider=True)
        return None if found is None else (found.atom, found.dims)

    def _is_product(self, x: Atom, depth: int = 0) -> bool:
        """Whether a product is found on the way up through what may be done to scores."""
        eqn = self.level.maker(x)
        if eqn is None or depth > DEEPEST:
            return False
        name = eqn.primitive.name
        ways = {"mul": eqn.invars, "add": eqn.invars, "select_n": eqn.invars[1:], "div": eqn.invars[:1]}
        if name in VIEWS or name == "convert_element_type":
            return self._is_product(eqn.invars[0], depth + 1)
        return name == "dot_general" or any(self._is_product(y, depth + 1) for y in ways.get(name, ()))

    def _may_mask(self, x: Atom, depth: int = 0) -> bool:
        """Whether a choice between values is found on the way up through sums and products."""
        eqn = self.level.maker(x)
        if eqn is None or depth > DEEPEST:
            return False
        ways = eqn.invars if eqn.primitive.name in SUMS or eqn.primitive.name in VIEWS else ()
        return eqn.primitive.name in CHOICES or any(self._may_mask(y, depth + 1) for y in ways)

    def _number(self, x: Atom) -> float | None:
        """The number that every entry is, if it is one."""
        constant, eqn = the(Constant, self.facts.of(x)), self.level.maker(x)
        if constant is None and eqn is not None and eqn.primitive.name in ("convert_element_type", "broadcast_in_dim"):
            number = self._number(eqn.invars[0])
            return number if number is not None and np.isinf(number) else None  # which facts do not convert
        return None if constant is None or isinstance(constant.value, complex) else float(constant.value)

    def _take(self, x: Operand, name: str) -> tuple[JaxprEqn, Dims]:
        """The equation of a name that makes a value."""
        eqn = self.level.maker(x.atom)
        if eqn is None or eqn.primitive.name != name:
            found = "an argument" if eqn is None else f"`{eqn.primitive.name}`"
            raise NotAttention(f"it is no softmax with its largest score subtracted: expected `{name}`, found {found}")
        self._note(x.atom)
        return eqn, x.dims

    def _of_first(self, taken: tuple[JaxprEqn, Dims]) -> Operand:
        return self._stretched(taken[0].invars[0], taken[1])

    def _note(self, x: Atom) -> None:
        assert is_var(x), "an equation makes it"
        self.places.add(self.level.made_by[x])

    def _stretched(self, x: Atom, dims: Dims) -> Operand:
        return Operand(x, stretched(x, dims))

    def _views(self, x: Operand) -> Operand:
        """What scores, or what is made of them, are a view of; the views are noted."""
        while (found := self._viewed(x)) is not None:
            self._note(x.atom)
            x = found
        return x

    def _widened(self, x: Operand) -> Operand:
        """What an operand is a view of, perhaps in more bits."""
        while (found := self._viewed(x, only_wider=True)) is not None:
            x = found
        return x

    def _scaled(self, x: Operand) -> Operand:
        """What queries or keys are a view of, perhaps scaled."""
        while True:
            x = self._widened(x)
            eqn = self.level.maker(x.atom)
            if eqn is None or eqn.primitive.name not in ("mul", "div"):
                return x
            try:
                x = self._multiplied(eqn, x.dims)
            except NotAttention:
                return x

    def _viewed(self, x: Operand, only_wider: bool = False) -> Operand | None:
        """What a value is a view of, if it is one."""
        eqn = self.level.maker(x.atom)
        if eqn is None or len(eqn.invars) != 1 or isinstance(eqn.invars[0], Literal):
            return None
        (y,), name, dims = eqn.invars, eqn.primitive.name, x.dims
        if eqn.params.get("sharding") is not None or (eqn.params.get("dimensions") is not None and name == "reshape"):
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
        return Operand(y, dims) if name in ("copy", "stop_gradient") and not only_wider else None
