"""How many bytes a step of a loop moves as XLA counts them, which makes one kernel of a loop that moves few.

XLA's CPU backend (jaxlib 0.10.2) calls a loop as one function if its cost analysis finds less than 1 kB a step, after
fusion: what each kernel reads and writes, the step's number with a row of an input, a row of a stacked output read and
written once more, a carry that is read after it was overwritten copied, and 8 bytes for each value that the loop holds.
"""

from collections import Counter

from aerogel._jax import Jaxpr, Literal, Var

from .primitives import ELEMENTWISE_FLOPS
from .sizes import nbytes

# Elementwise operations that XLA computes once, however many read them; the others it repeats for each reader.
DEAR = frozenset(
    "exp exp2 expm1 log log1p tanh sin cos tan pow sqrt rsqrt cbrt logistic erf erfc erf_inv atan2 asin acos atan "
    "sinh cosh asinh acosh atanh lgamma digamma rem".split()
)
CHEAP = frozenset(ELEMENTWISE_FLOPS) - DEAR | frozenset(
    "broadcast_in_dim reshape squeeze expand_dims transpose slice dynamic_slice concatenate pad rev iota "
    "convert_element_type copy".split()
)
OF_THE_LOOP, OF_A_VALUE, OF_A_NUMBER = 40, 8, 4  # bytes of its counter, of a pointer, and of the step's number


def step_bytes(body: Jaxpr, constants: int, carries: int) -> int:
    """Bytes that a step moves, the body being that of a `scan` with so many constants and carries."""
    step = _Step(body, constants, carries)
    held = 1 + len(body.invars) + len(body.outvars) - carries
    return sum(map(step.moved, step.roots)) + step.rows() + step.copies() + OF_THE_LOOP + OF_A_VALUE * held


class _Step:
    def __init__(self, body: Jaxpr, constants: int, carries: int) -> None:
        self.carry = body.invars[constants : constants + carries]
        self.rows_in = set(body.invars[constants + carries :])
        self.next, self.ys = body.outvars[:carries], body.outvars[carries:]
        self.makers = {v: eqn for eqn in body.eqns for v in eqn.outvars}
        readers = Counter(x for eqn in body.eqns for x in {x for x in eqn.invars if isinstance(x, Var)})
        results = {x for x in body.outvars if isinstance(x, Var)}
        self.roots = [
            v
            for v, eqn in self.makers.items()
            if v in results or (eqn.primitive.name not in CHEAP and (eqn.primitive.name not in DEAR or readers[v] > 1))
        ]
        self._roots = set(self.roots)
        self.leaves = {v: self._leaves(v) for v in self.roots}

    def _leaves(self, root: Var) -> set[Var]:
        """What the kernel of a root reads."""
        found, todo = set[Var](), list(self.makers[root].invars)
        while todo:
            x = todo.pop()
            if isinstance(x, Literal) or x in found:
                continue
            name = self.makers[x].primitive.name if x in self.makers else None
            # A row that is stacked is computed again for its other readers; a slice reads what it gives.
            again = x in self._roots and x not in self.next and name in CHEAP
            inside = name is not None and x not in self._roots and name not in ("slice", "dynamic_slice")
            if again or inside:
                todo += self.makers[x].invars
            else:
                found.add(x)
        return found

    def moved(self, root: Var) -> int:
        """Bytes that the kernel of a root reads and writes."""
        number = OF_A_NUMBER if self.leaves[root] & self.rows_in else 0
        return nbytes(root.aval) + sum(nbytes(x.aval) for x in self.leaves[root]) + number

    def rows(self) -> int:
        """Bytes of stacked rows that a kernel of their own reads and writes."""
        apart = (y for y in self.ys if not isinstance(y, Literal) and (y in self.next or y not in self.makers))
        return sum(2 * nbytes(y.aval) for y in apart)

    def copies(self) -> int:
        """Bytes of carries that are copied, since more than what comes next of them reads them."""
        found = 0
        for c, after in zip(self.carry, self.next, strict=True):
            others = any(c in leaves for root, leaves in self.leaves.items() if root is not after)
            # What is stacked of the next carry is computed again, if from this one alone.
            others |= isinstance(after, Var) and after in self.ys and self.leaves.get(after) == {c}
            if after is not c and (others or c in self.ys or c in self.next):
                found += 2 * nbytes(c.aval)
        return found
