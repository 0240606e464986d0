"""A new loop that is like another one: with its inputs, some carries left out, and a body that the caller fills in."""

from collections.abc import Callable, Container

from aerogel._jax import Atom, Var

from .loop import Loop, LoopBuilder, named
from .program import is_var, substitute


class LoopCopy:
    """A new loop with the inputs of an old one, some carries and constants left out; the caller fills in its body.

    Attributes:
        new: the loop under construction.
        env: what stands in the new body for the old one's variables.
    """

    def __init__(self, loop: Loop, without: Container[int] = (), made: Container[Atom] = ()):
        self.loop = loop
        self.new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
        consts = zip(loop.body_consts, loop.consts, strict=True)
        self.env: dict[Var, Atom] = {v: self.new.const(c) for v, c in consts if not (is_var(c) and c in made)}
        self.env |= {v: self.new.x(x) if is_var(x) else x for v, x in zip(loop.body_xs, loop.xs, strict=True)}
        self._carries: list[tuple[Atom, Callable[[Atom], None]]] = []
        for k, (init, var, final) in enumerate(zip(loop.init, loop.body_carry, loop.finals, strict=True)):
            if k not in without:
                self.env[var], set_next = self.new.keep_carry(init, named(final))
                self._carries.append((loop.next_carry[k], set_next))

    def finish(self, without: Container[Var] = ()) -> dict[Var, Var]:
        """Hands on the carries and stacks the other outputs; the stacked variable of each value that is one."""
        for old, set_next in self._carries:
            set_next(substitute(old, self.env))
        stacked: dict[Var, Var] = {}
        for y, v in zip(self.loop.ys, self.loop.body_ys, strict=True):
            if y in without:
                continue
            out = self.new.y(substitute(v, self.env), named(y))
            if is_var(v):
                stacked.setdefault(v, out)
        return stacked
