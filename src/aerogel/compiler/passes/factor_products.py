"""Factor products: a product with a triangular factor of what a solve with that factor made is what was solved for.

JAX's gradient of a Cholesky factor L multiplies its cotangent with L^T, and reads the lower triangle of the product
(Murray 2016, arXiv:1602.07527). The cotangent is that of what the factor was used for: a solve for one vector gives
the lower triangle of an outer product u w^T with u = L^-T v, a log determinant gives a diagonal. Below the diagonal

    L^T tril(u w^T) = (L^T u) w^T = v w^T,   L^T diag(d) = diag(diag(L) d),

of n^2 operations each in place of 2 n^3. What stands above the diagonal of the cotangent does not matter there.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..known.records import Below, Constant, Counted, Facts, the
from ..known.structure import structure
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import normalize
from ..pipeline import Context
from ..program import Builder, Program, is_var, where
from ..record import record
from ..report import Decision

NAME = "factor-products"
WHAT = "a product with a factor becomes one of few columns"
FEWEST = 32  # rows of the factor; below, starting the kernels is what it costs
MOST_TERMS = 16  # of the cotangent: each is a product
SUMS = ("add", "add_any", "sub")
# An entry of the product is read at its own place.
ENTRYWISE = ("div", "mul", "neg", "convert_element_type")


@record
class FactorProducts:
    """The pass. Bound: each product is looked at once, each cotangent taken apart into at most 16 terms."""

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such products made of few columns, and a decision for each of them."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions))
        return (program if new is program else normalize(new)[0]), decisions


@record
class _Outer:
    """`sign` times u w^T, where u and w are matrices, or the transposes of those given.

    Attributes:
        along: the axis of each along which the product sums.
        is_solved: whether u is L^T u already.
    """

    sign: int
    u: Atom
    w: Atom
    along: tuple[int, int]
    is_solved: bool

    @property
    def columns(self) -> int:
        """How many terms it sums."""
        return self.u.aval.shape[self.along[0]]


@record
class _Diagonal:
    """`sign` times the matrix with the vector d on its diagonal."""

    sign: int
    d: Atom


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    if not any(eqn.primitive.name == "cholesky" for eqn in jaxpr.eqns):
        return jaxpr
    level, facts, edits = Level(jaxpr), structure(jaxpr), list[Edit]()
    for place, eqn in enumerate(jaxpr.eqns):
        if not _is_candidate(eqn):
            continue
        found = next(
            (one for k in (0, 1) if (one := _Reader(level, facts, eqn.invars[k]).edit(place, k)) is not None), None
        )
        if found is None:
            continue
        fired = not isinstance(found, str)
        reason = "what was solved with the factor is multiplied with it again" if fired else str(found)
        decisions.append(Decision(NAME, WHAT, where(eqn), fired, reason, exactness=Exactness.FINITE))
        edits += [] if isinstance(found, str) else [found]
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _is_candidate(eqn: JaxprEqn) -> bool:
    """Whether it is A^T B for square matrices A and B of one float type."""
    if eqn.primitive.name != "dot_general" or eqn.effects or eqn.params.get("out_sharding") is not None:
        return False
    (a, b), out = eqn.invars, eqn.outvars[0]
    if tuple(map(tuple, eqn.params["dimension_numbers"][0])) != ((0,), (0,)) or len(a.aval.shape) != 2:
        return False
    square = a.aval.shape == b.aval.shape == out.aval.shape and a.aval.shape[0] >= FEWEST
    alike = a.aval.dtype == b.aval.dtype == out.aval.dtype
    return square and alike and is_var(a) and is_var(b) and a is not b and jnp.issubdtype(a.aval.dtype, jnp.floating)


@record
class _Reader:
    """Takes products with the transpose of one factor apart."""

    level: Level
    facts: Facts
    factor: Atom

    def edit(self, place: int, k: int) -> Edit | str | None:
        """What stands for the product; the reason against it; None where it is no product of a gradient like this.

        Operand `k` is the factor: the product of the second one is the transpose of what is read.
        """
        eqn = self.level.eqns[place]
        root = self._below_diagonal(self.factor)
        maker = self.level.maker(root)
        if maker is None or maker.primitive.name != "cholesky" or not self._is_lower(self.factor):
            return None
        if not self._is_read_below(eqn.outvars[0], k == 1):
            return None
        terms = self._terms(eqn.invars[1 - k])
        if terms is None:
            return "what it is multiplied with is no sum of products of few columns"
        few = sum(t.columns for t in terms if isinstance(t, _Outer) and not t.is_solved)
        if 2 * few > self.factor.aval.shape[0]:
            return "what it is multiplied with has as many columns"
        return self._edit(place, terms, k == 1)

    def _edit(self, place: int, terms: Sequence[_Outer | _Diagonal], is_turned: bool) -> Edit:
        eqn, n = self.level.eqns[place], self.factor.aval.shape[0]
        atoms = [x for t in terms for x in ((t.u, t.w) if isinstance(t, _Outer) else (t.d,))]
        precision = eqn.params["precision"]

        def product(factor: Any, *values: Any) -> Any:
            rest, made = iter(values), []
            for t in terms:
                if isinstance(t, _Outer):
                    one = _outer(factor, t, next(rest), next(rest), precision)
                else:
                    one = _diagonal(factor, next(rest), n)
                made.append(one if t.sign > 0 else -one)
            total = functools.reduce(operator.add, made)
            return total.T if is_turned else total

        builder, here = Builder(eqn), frozenset({place})
        (out,) = builder.call(product, self.factor, *atoms)
        return Edit(place, here, builder.eqns, {eqn.outvars[0]: out}, here)

    def _mask(self, eqn: JaxprEqn | None) -> int | None:
        """The first diagonal, counted downwards, that a selection with zeros elsewhere keeps."""
        if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
            return None
        below, zero = the(Below, self.facts.of(eqn.invars[0])), the(Constant, self.facts.of(eqn.invars[1]))
        if below is None or (below.a, below.b) != (0, 1) or zero is None or zero.value != 0:
            return None
        return below.by

    def _below_diagonal(self, x: Atom) -> Atom:
        """A value with the same entries on and below the diagonal: x without its masks."""
        while (by := self._mask(eqn := self.level.maker(x))) is not None and by <= 0:
            assert eqn is not None
            x = eqn.invars[2]
        return x

    def _is_lower(self, x: Atom) -> bool:
        """Whether there is nothing above the diagonal."""
        by = self._mask(self.level.maker(x))
        return by is not None and by >= 0

    def _is_read_below(self, x: Var, is_turned: bool) -> bool:
        """Whether nobody reads what stands above the diagonal; where a value `is_turned`, below it."""
        waiting = [(x, is_turned)]
        while waiting:
            at, is_turned = waiting.pop()
            for place in self.level.readers(at):
                if place < 0:
                    return False
                eqn = self.level.eqns[place]
                by = self._mask(eqn)
                if by is not None:
                    if is_turned or by < 0 or eqn.invars[1] is at or eqn.invars[2] is not at:
                        return False
                elif eqn.primitive.name == "transpose" or eqn.primitive.name in ENTRYWISE:
                    waiting.append((eqn.outvars[0], is_turned != (eqn.primitive.name == "transpose")))
                else:
                    return False
        return True

    def _terms(self, x: Atom) -> list[_Outer | _Diagonal] | None:
        """What a value is the sum of, on and below the diagonal."""
        found: list[_Outer | _Diagonal] = []
        waiting: list[tuple[int, Atom, bool]] = [(1, x, False)]
        while waiting:
            sign, at, is_turned = waiting.pop()
            at = at if is_turned else self._below_diagonal(at)
            eqn = self.level.maker(at)
            name = "" if eqn is None else eqn.primitive.name
            if eqn is None or any(one.aval.shape != at.aval.shape for one in eqn.invars if name in SUMS):
                return None
            if name in SUMS:
                signs = (sign, -sign if name == "sub" else sign)
                waiting += [(each, one, is_turned) for each, one in zip(signs, eqn.invars, strict=True)]
            elif name == "neg":
                waiting.append((-sign, eqn.invars[0], is_turned))
            elif name == "transpose":
                waiting.append((sign, eqn.invars[0], not is_turned))
            else:
                term = self._outer(sign, eqn, is_turned) or self._diagonal(sign, eqn)
                if term is None:
                    return None
                found.append(term)
            if len(found) + len(waiting) > MOST_TERMS:
                return None
        return found

    def _outer(self, sign: int, eqn: JaxprEqn, is_turned: bool) -> _Outer | None:
        """A product of two matrices of few columns; where it `is_turned`, its transpose is meant."""
        if eqn.primitive.name != "dot_general" or eqn.params.get("out_sharding") is not None:
            return None
        (u, w), (contract, batch) = eqn.invars, eqn.params["dimension_numbers"]
        alike = u.aval.dtype == w.aval.dtype == self.factor.aval.dtype == eqn.outvars[0].aval.dtype
        if batch[0] or len(contract[0]) != 1 or len(u.aval.shape) != 2 or len(w.aval.shape) != 2 or not alike:
            return None
        along = contract[0][0], contract[1][0]
        u, w, along = (w, u, along[::-1]) if is_turned else (u, w, along)
        solve = self.level.maker(u)
        if solve is None or solve.primitive.name != "triangular_solve" or not self._is_by_factor(solve, along[0]):
            return _Outer(sign, u, w, along, False)
        return _Outer(sign, solve.invars[1], w, along, True)

    def _is_by_factor(self, solve: JaxprEqn, along: int) -> bool:
        """Whether it solves L^T u = v; where the sums are along the first axis of u, the transpose of that."""
        p, side = solve.params, along == 1
        plain = p["lower"] and not p["unit_diagonal"] and not p["conjugate_a"]
        same = self._below_diagonal(solve.invars[0]) is self._below_diagonal(self.factor)
        return plain and p["left_side"] == side and p["transpose_a"] == side and same

    def _diagonal(self, sign: int, eqn: JaxprEqn) -> _Diagonal | None:
        """Numbers that are added to the diagonal of a matrix of zeros, each once."""
        if eqn.primitive.name != "scatter-add":
            return None
        (zeros, indices, d), p = eqn.invars, eqn.params["dimension_numbers"]
        zero, n = the(Constant, self.facts.of(zeros)), self.factor.aval.shape[0]
        both = tuple(p.scatter_dims_to_operand_dims) == tuple(p.inserted_window_dims) == (0, 1)
        plain = both and not p.update_window_dims and not p.operand_batching_dims
        if zero is None or zero.value != 0 or not plain or tuple(d.aval.shape) != (n,):
            return None
        is_counted = tuple(indices.aval.shape) == (n, 2) and the(Counted, self.facts.of(indices)) == Counted(0, 1, 0)
        return _Diagonal(sign, d) if is_counted and d.aval.dtype == self.factor.aval.dtype else None


def _outer(factor: Any, term: _Outer, u: Any, w: Any, precision: Any) -> Any:
    def product(a: Any, b: Any, dims: Any) -> Any:
        return lax.dot_general(a, b, (dims, ((), ())), precision=precision, preferred_element_type=factor.dtype)

    (one, other), along = (u, w), term.along
    if not term.is_solved:  # which puts the rows first
        one, along = product(factor, one, ((0,), (1 - along[0],))), (1, along[1])
    return product(one, other, ((along[0],), (along[1],)))


def _diagonal(factor: Any, d: Any, n: int) -> Any:
    rows, columns = (lax.broadcasted_iota(np.dtype(np.int32), (n, n), k) for k in range(2))
    return lax.select(lax.eq(rows, columns), factor * d[None], lax.full((n, n), 0, factor.dtype))
