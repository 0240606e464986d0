"""Optimisers that are wrong on purpose, and two that are right: the judge must tell them apart.

Each evaluates a program equation by equation, with other results for some of them, or with other outputs at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from aerogel import _jax

_JITS = frozenset({"jit"})


def _as_it_is(eqn: Any, ins: list[Any]) -> list[Any] | None:
    return None


@dataclass(frozen=True)
class Miscompiler:
    """A stand-in for `aerogel.optimize`: call it with a function.

    Attributes:
        name: what it does.
        equation: results to use for an equation, or None for its own.
        outputs: changes the program's results.
        inline: calls that are looked into.
        features: programs with all of these can show the fault.
    """

    name: str
    equation: Callable[[Any, list[Any]], list[Any] | None] = _as_it_is
    outputs: Callable[[list[Any]], list[Any]] = list
    inline: frozenset[str] = _JITS
    features: frozenset[str] = frozenset()

    def __call__(self, f: Callable[..., Any], *, numerics: str = "fast") -> Callable[..., Any]:
        """`f`, miscompiled."""

        def optimised(*args: Any) -> Any:
            closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
            outs = self._evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
            outs = [
                _jax.convert_element_type(x, v.aval.dtype, v.aval.weak_type) if isinstance(v, _jax.Literal) else x
                for x, v in zip(outs, closed.jaxpr.outvars, strict=True)
            ]
            return jax.tree.unflatten(jax.tree.structure(shapes), self.outputs([jnp.asarray(x) for x in outs]))

        return optimised

    def _evaluate(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, _jax.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            ins = [read(x) for x in eqn.invars]
            outs = self.equation(eqn, ins)
            if outs is None and eqn.primitive.name in self.inline:
                closed = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
                outs = self._evaluate(closed.jaxpr, closed.consts, ins)
            env.update(zip(eqn.outvars, _bind(eqn, ins) if outs is None else outs, strict=True))
        return [read(x) for x in jaxpr.outvars]


def _bind(eqn: Any, ins: Sequence[Any], **changed: Any) -> list[Any]:
    params = eqn.primitive.get_bind_params({**eqn.params, **changed})
    outs = eqn.primitive.bind(*ins, **params)
    return list(outs) if eqn.primitive.multiple_results else [outs]


def _sums_backwards(eqn: Any, ins: list[Any]) -> list[Any] | None:
    if eqn.primitive.name != "reduce_sum" or not jnp.issubdtype(ins[0].dtype, jnp.inexact) or not eqn.params["axes"]:
        return None
    axis = eqn.params["axes"][0]
    x, half = jnp.flip(ins[0], axis), ins[0].shape[axis] // 2
    first, second = lax.slice_in_dim(x, 0, half, axis=axis), lax.slice_in_dim(x, half, None, axis=axis)
    return [_bind(eqn, [first])[0] + _bind(eqn, [second])[0]]


def _drops_a_step(eqn: Any, ins: list[Any]) -> list[Any] | None:
    if eqn.primitive.name != "scan" or eqn.params["length"] < 2:
        return None
    consts, carries = _jax.scan_counts(eqn.params)
    held = consts + carries
    outs = _bind(eqn, [*ins[:held], *(x[1:] for x in ins[held:])], length=eqn.params["length"] - 1)
    return outs[:carries] + [jnp.concatenate([y[:1], y]) for y in outs[carries:]]


def _turns_round(eqn: Any, ins: list[Any]) -> list[Any] | None:
    return _bind(eqn, ins, reverse=not eqn.params["reverse"]) if eqn.primitive.name == "scan" else None


def _swaps_operands(eqn: Any, ins: list[Any]) -> list[Any] | None:
    return _bind(eqn, ins[::-1]) if eqn.primitive.name == "sub" else None


def _sums_in_bfloat16(eqn: Any, ins: list[Any]) -> list[Any] | None:
    if eqn.primitive.name != "reduce_sum" or ins[0].dtype != jnp.float32:
        return None
    return [out.astype(jnp.float32) for out in _bind(eqn, [ins[0].astype(jnp.bfloat16)])]


def _forgets_the_last(eqn: Any, ins: list[Any]) -> list[Any] | None:
    """Softmax and logsumexp do not mind which maximum they subtract; plain maxima do."""
    if eqn.primitive.name != "reduce_max" or ins[0].shape[eqn.params["axes"][0]] < 2:
        return None
    return _bind(eqn, [lax.slice_in_dim(ins[0], 0, -1, axis=eqn.params["axes"][0])])


def _takes_one_branch(eqn: Any, ins: list[Any]) -> list[Any] | None:
    return _bind(eqn, [1 - jnp.clip(ins[0], 0, 1), *ins[1:]]) if eqn.primitive.name == "cond" else None


def _other_keys(eqn: Any, ins: list[Any]) -> list[Any] | None:
    if eqn.primitive.name != "random_bits":
        return None
    keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(ins[0].reshape(-1))
    return _bind(eqn, [keys.reshape(ins[0].shape)])


def _integers_through_floats(eqn: Any, ins: list[Any]) -> list[Any] | None:
    if eqn.primitive.name not in ("mul", "add", "sub", "reduce_sum") or not jnp.issubdtype(
        eqn.outvars[0].aval.dtype, jnp.integer
    ):
        return None
    return [_bind(eqn, [jnp.asarray(x).astype(jnp.float32) for x in ins])[0].astype(eqn.outvars[0].aval.dtype)]


def _strong(outs: list[Any]) -> list[Any]:
    return [x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else lax.convert_element_type(x, x.dtype) for x in outs]


def _float32(outs: list[Any]) -> list[Any]:
    return [x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x for x in outs]


def _keepdims(outs: list[Any]) -> list[Any]:
    return [x[None] if x.ndim == 0 else x for x in outs]


def _swapped(outs: list[Any]) -> list[Any]:
    for i, a in enumerate(outs):
        for j, b in enumerate(outs[:i]):
            if a is not b and (a.shape, a.dtype) == (b.shape, b.dtype):
                return [b if k == i else a if k == j else x for k, x in enumerate(outs)]
    return outs


def _capped(outs: list[Any]) -> list[Any]:
    return [jnp.where(jnp.isposinf(x), jnp.finfo(x.dtype).max, x) if _is_float(x) else x for x in outs]


def _without_nan(outs: list[Any]) -> list[Any]:
    return [jnp.where(jnp.isnan(x), 0, x) if _is_float(x) else x for x in outs]


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _of(words: str) -> frozenset[str]:
    return frozenset(words.split())


RIGHT = (
    Miscompiler("leaves-all-as-it-is"),
    Miscompiler("sums-from-the-other-end", _sums_backwards, features=_of("reduction")),
)
WRONG = (
    Miscompiler("drops-a-scan-step", _drops_a_step, features=_of("fusion_bare")),
    Miscompiler("turns-scans-round", _turns_round, features=_of("fusion_bare")),
    Miscompiler("swaps-operands-of-sub", _swaps_operands, features=_of("fusion_bare elementwise_after_scan")),
    Miscompiler("sums-in-bfloat16", _sums_in_bfloat16, features=_of("fusion_bare consume_mse float32")),
    Miscompiler("forgets-the-last-of-a-max", _forgets_the_last, features=_of("fusion_bare consume_max")),
    Miscompiler("takes-the-other-branch", _takes_one_branch, features=_of("cond")),
    Miscompiler("draws-from-another-key", _other_keys, features=_of("random")),
    Miscompiler("integers-through-floats", _integers_through_floats, features=_of("integer integer_output")),
    Miscompiler("differentiates-custom-rules", inline=_of("jit custom_jvp_call"), features=_of("custom_jvp")),
    Miscompiler("loses-weak-types", outputs=_strong, features=_of("weak_type")),
    Miscompiler("widens-small-floats", outputs=_float32, features=_of("bfloat16")),
    Miscompiler("keeps-reduced-axes", outputs=_keepdims, features=_of("reduction")),
    Miscompiler("swaps-results", outputs=_swapped, features=_of("duplicate_output")),
    Miscompiler("caps-infinity", outputs=_capped, features=_of("special_values")),
    Miscompiler("puts-zero-for-nan", outputs=_without_nan, features=_of("special_values")),
)
