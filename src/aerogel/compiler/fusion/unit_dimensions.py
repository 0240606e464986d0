"""A loop's body without dimensions of the length one, where it can do without.

What fusion moves into a loop works on blocks of one step, whose time axis has the length one. XLA's CPU backend
(jaxlib 0.10.2) computes some of that in another way than the same without the dimension: a sum of products with an
array made before the loop takes five times as long, an `any` or an `all` three times.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES
from ..axes.rebind import bind, shape_of
from ..program import Builder, is_var, rename, with_equations

Dims = tuple[int, ...]


def without_unit_dimensions(jaxpr: Jaxpr) -> Jaxpr:
    """The same body, where elementwise operations, reductions and views leave out the dimensions that were added.

    An input keeps those that it has, until it meets a value without.
    """
    walk = _Walk()
    for eqn in jaxpr.eqns:
        rule = RULES.get(eqn.primitive.name)
        if rule is None or not rule(walk, eqn):
            walk.keep(eqn)
    return with_equations(jaxpr, walk.eqns, [walk.whole(x) for x in jaxpr.outvars])


class _Walk:
    """The new equations, and how values of the old body are known in them: without some dimensions, whole, or both."""

    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self._short: dict[Var, tuple[Atom, Dims, JaxprEqn]] = {}
        self._whole: dict[Var, Atom] = {}

    def keep(self, eqn: JaxprEqn) -> None:
        """Takes an equation over as it is."""
        changed = [x for x in eqn.invars if is_var(x) and (x in self._short or x in self._whole)]
        self.eqns.append(rename(eqn, {x: self.whole(x) for x in changed}) if changed else eqn)

    def call(self, like: JaxprEqn, fun: Callable[..., Any], atom: Atom) -> Atom:
        """The result of a small function, in the place of the equation `like`."""
        builder = Builder(like)
        (out,) = builder.call(fun, atom)
        self.eqns += builder.eqns
        return out

    def set(self, eqn: JaxprEqn, value: Atom, left_out: Iterable[int]) -> bool:
        """Lets `value`, without the dimensions left out, stand for the result of an equation."""
        (out,) = eqn.outvars
        left_out = tuple(sorted(left_out))
        if left_out:
            self._short[out] = value, left_out, eqn
        else:
            self._whole[out] = value
        return True

    def short(self, x: Atom) -> tuple[Atom, Dims]:
        """A value in its shortest form, and which dimensions that leaves out."""
        if is_var(x) and x in self._short:
            return self._short[x][:2]
        return self.whole(x), ()

    def whole(self, x: Atom) -> Atom:
        """A value with all its dimensions."""
        if not is_var(x):
            return x
        if x in self._short and x not in self._whole:
            value, left_out, eqn = self._short[x]
            self._whole[x] = self.call(eqn, lambda v: lax.expand_dims(v, left_out), value)
        return self._whole.get(x, x)

    def without(self, eqn: JaxprEqn, x: Atom, dims: Collection[int]) -> Atom:
        """A value without `dims`, which are of the length one, and hold those that its short form leaves out."""
        value, left_out = self.short(x)
        rest = _among(set(dims).difference(left_out), left_out)
        return self.call(eqn, lambda v: lax.squeeze(v, rest), value) if rest else value


def _among(dims: Iterable[int], left_out: Collection[int]) -> Dims:
    """Where dimensions stand once others are left out."""
    return tuple(d - sum(gone < d for gone in left_out) for d in sorted(dims))


def _others(shape: Dims, dims: Collection[int]) -> Dims:
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def _ones(shape: Dims) -> set[int]:
    return {d for d, n in enumerate(shape) if n == 1}


def _elementwise(walk: _Walk, eqn: JaxprEqn) -> bool:
    shape = shape_of(eqn.outvars[0])
    full = [x for x in eqn.invars if shape_of(x)]
    dims = {d for x in full for d in walk.short(x)[1]}
    if not dims or any(shape_of(x) != shape for x in full) or len(eqn.outvars) != 1:
        return False
    ins = [walk.without(eqn, x, dims) if shape_of(x) else walk.whole(x) for x in eqn.invars]
    (out,) = eqn.outvars
    new = _jax.new_var(out.aval.update(shape=_others(shape, dims)))
    walk.eqns.append(eqn.replace(invars=ins, outvars=[new]))
    return walk.set(eqn, new, dims)


def _reduction(walk: _Walk, eqn: JaxprEqn) -> bool:
    (x,), axes = eqn.invars, eqn.params["axes"]
    value, left_out = walk.short(x)
    if not left_out or eqn.params.get("out_sharding") is not None:
        return False
    inner = _among(set(axes).difference(left_out), left_out)
    if inner:
        value = walk.call(eqn, lambda v: bind(eqn, [v], eqn.params | {"axes": inner})[0], value)
    return walk.set(eqn, value, _among(set(left_out).difference(axes), axes))


def _broadcast(walk: _Walk, eqn: JaxprEqn) -> bool:
    if len(eqn.invars) != 1 or eqn.params["sharding"] is not None:
        return False
    shape, to = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    value, left_out = walk.short(eqn.invars[0])
    to = [d for k, d in enumerate(to) if k not in left_out]
    added = _ones(shape).difference(to)
    if not added and not left_out:
        return False
    shape, to = _others(shape, added), _among(to, added)
    if shape != shape_of(value):
        value = walk.call(eqn, lambda v: lax.broadcast_in_dim(v, shape, to), value)
    return walk.set(eqn, value, added)


def _reshape(walk: _Walk, eqn: JaxprEqn) -> bool:
    if len(eqn.invars) != 1 or eqn.params["dimensions"] is not None or eqn.params["sharding"] is not None:
        return False
    (x,), shape = eqn.invars, eqn.params["new_sizes"]
    old, (value, left_out) = shape_of(x), walk.short(x)
    if _others(old, _ones(old)) == _others(shape, _ones(shape)) and (left_out or _ones(shape)):
        return walk.set(eqn, walk.without(eqn, x, _ones(old)), _ones(shape))
    if not left_out:
        return False
    kept = {d for d in left_out if shape[: d + 1] == old[: d + 1]}
    sizes = _others(shape, kept)
    return walk.set(eqn, walk.call(eqn, lambda v: lax.reshape(v, sizes), value), kept)


def _squeeze(walk: _Walk, eqn: JaxprEqn) -> bool:
    (x,), dims = eqn.invars, eqn.params["dimensions"]
    left_out = walk.short(x)[1]
    if not left_out:
        return False
    return walk.set(eqn, walk.without(eqn, x, {*left_out, *dims}), _among(set(left_out).difference(dims), dims))


def _transpose(walk: _Walk, eqn: JaxprEqn) -> bool:
    order = eqn.params["permutation"]
    value, left_out = walk.short(eqn.invars[0])
    if not left_out:
        return False
    kept = [d for d in order if d not in left_out]
    rest = tuple(sorted(kept).index(d) for d in kept)
    if kept != sorted(kept):
        value = walk.call(eqn, lambda v: lax.transpose(v, rest), value)
    return walk.set(eqn, value, {k for k, d in enumerate(order) if d in left_out})


REDUCTIONS = "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor".split()
RULES: dict[str, Callable[[_Walk, JaxprEqn], bool]] = {
    **dict.fromkeys(NAMES, _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduction),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
}
