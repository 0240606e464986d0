"""Softmax attention, as it is read from a level: from the product with the values up to that of queries and keys.

Dimensions carry labels (`network.py`), so that it does not matter how they are ordered, split or mapped over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aerogel._jax import Atom, JaxprEqn

from ..known.records import Facts
from ..level import Level
from ..program import is_var
from .labelled import VIEWS, Labelled, Operand
from .network import Labels, Network, NotOneNetwork
from .triangle_masks import Dims, Triangle, TriangleMasks

SUMS = frozenset("add sub mul div neg convert_element_type".split())
CHOICES = frozenset("select_n log max min".split())
# What a softmax makes of it beside any score of 16 bits is 0.
LOWEST = -1e4
DEEPEST = 40


class NotAttention(Exception):
    """What looks like an attention is none that is known; says why."""


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


def read_attention(level: Level, facts: Facts, place: int, near: bool = False) -> Attention | None:
    """The attention whose result an equation makes; None where that is nothing like one.

    Its operands are what the products read if they are to be `near`, and otherwise what that is a view of.

    Raises:
        NotAttention: it is a product with a softmax, and yet not an attention that is known.
    """
    eqn = level.eqns[place]
    if eqn.primitive.name != "dot_general":
        return None
    for side in (0, 1):
        if is_softmax(level, eqn.invars[side]):
            try:
                return _Reader(level, facts, near).read(place, side)
            except NotOneNetwork as error:
                raise NotAttention(f"its dimensions cannot be followed: {error}") from None
    return None


def is_softmax(level: Level, x: Atom) -> bool:
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
    near: bool
    places: set[int] = field(default_factory=set)
    scale: float = 1.0
    masks: list[tuple[Operand, bool]] = field(default_factory=list)  # and whether scores are kept where it is true
    biases: list[Operand] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = Labelled(self.level, self.facts)
        self.network = self.values.network

    def read(self, place: int, side: int) -> Attention:
        """The attention, of which the weights are on a side of the product at a place."""
        eqn = self.level.eqns[place]
        out = tuple(self.network.label(n) for n in eqn.outvars[0].aval.shape)
        inner, operands = self._factors(eqn, out)
        long = [labels for labels in inner if labels]
        if len(long) != 1:
            raise NotAttention("the softmax is taken over several dimensions")
        (keys,) = long
        product, dims = self._scores(self._softmax(operands[side], keys))
        depth, pair = self._factors(product, dims)
        first = 0 if {*self._resolved(keys)}.isdisjoint(self._resolved(pair[0].labels)) else 1
        q, k = (self._scaled(pair[i]) for i in (first, 1 - first))
        v = operands[1 - side] if self.near else self.values.widened(operands[1 - side])
        causal = self._causal()
        if len(self.biases) > 1:
            raise NotAttention("several biases are added to its scores")
        final = self.values.resolved
        return Attention(
            place,
            self.network,
            tuple(map(self._resolved, out)),
            *map(final, (q, k, v)),
            keys=self._resolved(keys),
            depth=self._resolved([one for labels in depth for one in labels]),
            bias=final(self.biases[0]) if self.biases else None,
            causal=None if causal is None else (self._resolved(causal[0]), self._resolved(causal[1])),
            scale=self.scale,
            scores=product,
            places=frozenset(self.places | {place}),
        )

    def _resolved(self, labels: Sequence[int]) -> Labels:
        return self.network.resolved(labels)

    def _factors(self, eqn: JaxprEqn, out: Dims) -> tuple[list[Labels], tuple[Operand, Operand]]:
        if eqn.effects or eqn.params.get("out_sharding") is not None:
            raise NotAttention("its layout over devices is asked for")
        return self.values.factors(eqn, out)

    def _softmax(self, p: Operand, keys: Labels) -> Operand:
        """The scores that a softmax along the keys is taken of."""
        p = self._views(p)
        e, total = (self._views(p.read(x)) for x in self._take(p, "div").invars)
        self._check_reduced(total, "reduce_sum", e, keys)
        x = self._views(e.read(self._take(e, "exp").invars[0]))
        s, most = (self._views(x.read(y)) for y in self._take(x, "sub").invars)
        self._check_reduced(self._first_most(most), "reduce_max", s, keys)
        return s

    def _first_most(self, most: Operand) -> Operand:
        """The largest scores, without what has no influence: `stop_gradient`, and the -inf that they start from."""
        while (eqn := self.level.maker(most.atom)) is not None:
            low = [self.values.number(x) == -np.inf for x in eqn.invars]
            at = 0 if eqn.primitive.name == "stop_gradient" else low.index(False) if low.count(True) == 1 else None
            if at is None or eqn.primitive.name not in ("stop_gradient", "max"):
                break
            self._note(most.atom)
            most = self._views(most.read(eqn.invars[at]))
        return most

    def _check_reduced(self, reduced: Operand, name: str, of: Operand, keys: Labels) -> None:
        """Raises unless a value is a reduction of another along the keys."""
        eqn, dims = self._take(reduced, name), reduced.dims
        (x,), axes = eqn.invars, [int(d) for d in eqn.params["axes"]]
        kept, shape = iter(dims), x.aval.shape
        full = tuple((keys if shape[d] > 1 else ()) if d in axes else next(kept) for d in range(len(shape)))
        long = [d for d in axes if shape[d] > 1]
        if len(long) != 1 or shape[long[0]] != self.network.sizes[keys[0]]:
            raise NotAttention("the softmax is not taken over the keys")
        found = self._views(Operand(x, full))
        if self.values.resolved(found) != self.values.resolved(of):
            raise NotAttention("the softmax is not taken over the keys")

    def _scores(self, s: Operand) -> tuple[JaxprEqn, Dims]:
        """The product that makes the scores, and its labels; what is done to them on the way is noted."""
        for _ in range(DEEPEST):
            s = self._views(s)
            eqn, name = self.values.maker(s)
            if eqn is None or eqn.primitive.name not in ("mul", "div", "select_n", "add", "dot_general"):
                raise NotAttention(f"its scores are {name}, and not a product of queries and keys")
            self._note(s.atom)
            if eqn.primitive.name == "dot_general":
                return eqn, s.dims
            step = {"select_n": self._masked, "add": self._biased}.get(eqn.primitive.name, self._multiplied)
            s = step(eqn, s)
        raise NotAttention("too much is done to its scores")

    def _multiplied(self, eqn: JaxprEqn, out: Operand) -> Operand:
        for k in (1, 0) if eqn.primitive.name == "mul" else (1,):
            number = self.values.number(eqn.invars[k])
            if number and np.isfinite(number):
                self.scale = self.scale * number if eqn.primitive.name == "mul" else self.scale / number
                return out.read(eqn.invars[1 - k])
        raise NotAttention("its scores are multiplied by more than one number")

    def _masked(self, eqn: JaxprEqn, out: Operand) -> Operand:
        which, *cases = eqn.invars
        for k in (0, 1):
            number = self.values.number(cases[k])
            if number is not None and number * self.scale <= LOWEST and len(cases) == 2:
                self.masks.append((out.read(which), k == 0))
                return out.read(cases[1 - k])
        raise NotAttention("its scores are chosen between values that are no mask")

    def _biased(self, eqn: JaxprEqn, out: Operand) -> Operand:
        if self.scale != 1:
            raise NotAttention("its scores are scaled behind what is added to them")
        k = next((k for k in (0, 1) if self._is_product(eqn.invars[k])), None)
        if k is None:
            raise NotAttention("its scores are a sum, and not a product of queries and keys")
        added = self.values.widened(out.read(eqn.invars[1 - k]))
        if not self._is_added_mask(added):
            if self._may_mask(added.atom):
                raise NotAttention("what is added to its scores is chosen between values: it may be a mask")
            self.biases.append(added)
        return out.read(eqn.invars[k])

    def _is_added_mask(self, x: Operand) -> bool:
        """Whether a bias is 0 where scores are kept and very low elsewhere; it is noted as a mask then."""
        eqn = self.level.maker(x.atom)
        if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
            return False
        values = [self.values.number(case) for case in eqn.invars[1:]]
        for k in (0, 1):
            low = values[k]
            if low is not None and low <= LOWEST and values[1 - k] == 0:
                self.masks.append((x.read(eqn.invars[0]), k == 0))
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
        found = self.values.viewed(Operand(x, dims), only_wider=True)
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

    def _take(self, x: Operand, name: str) -> JaxprEqn:
        """The equation of a name that makes a value."""
        eqn, found = self.values.maker(x)
        if eqn is None or eqn.primitive.name != name:
            raise NotAttention(f"it is no softmax with its largest score subtracted: expected `{name}`, found {found}")
        self._note(x.atom)
        return eqn

    def _note(self, x: Atom) -> None:
        assert is_var(x), "an equation makes it"
        self.places.add(self.level.made_by[x])

    def _views(self, x: Operand) -> Operand:
        """What scores, or what is made of them, are a view of; the views are noted."""
        while (found := self.values.viewed(x)) is not None:
            self._note(x.atom)
            x = found
        return x

    def _scaled(self, x: Operand) -> Operand:
        """What queries or keys are a view of, perhaps scaled."""
        while not self.near:
            x = self.values.widened(x)
            eqn = self.level.maker(x.atom)
            if eqn is None or eqn.primitive.name not in ("mul", "div"):
                break
            try:
                x = self._multiplied(eqn, x)
            except NotAttention:
                break
        return x
