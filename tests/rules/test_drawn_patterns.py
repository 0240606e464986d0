"""Rules with drawn patterns: each is found wherever its own program stands, and what it writes stands there then."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel.compiler.normalize import normalize
from aerogel.compiler.program import is_var
from rules.rules_under_test import made, normal

ONE: dict[str, Callable[[Any], Any]] = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "neg": jnp.negative,
    "square": lambda x: x**2,
    "softplus": jax.nn.softplus,
    "relu": jax.nn.relu,
    "sum": lambda x: x.sum(-1, keepdims=True),
    "max": lambda x: x.max(0),
    "softmax": jax.nn.softmax,
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "turned": lambda x: x[::-1],
    "transposed": jnp.transpose,
    "half": lambda x: 0.5 * x,
    "one more": lambda x: x + 1,
    "positive": lambda x: jnp.where(x > 0, x, 0),
    "row": lambda x: x[0],
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "larger": jnp.maximum,
    "div": lambda x, y: x / (2 + y * y),
    "chosen": lambda x, y: jnp.where(x < y, x, y),
    "product": lambda x, y: x @ y.T if x.ndim == y.ndim == 2 and x.shape[1] == y.shape[1] else x * y,
}


@dataclass(frozen=True)
class Drawn:
    """A function of one or two arrays as a tree: an operation and its operands, or the number of an argument."""

    name: str
    parts: tuple["Drawn | int", ...]

    def __call__(self, *args: Any) -> Any:
        parts = [args[p] if isinstance(p, int) else p(*args) for p in self.parts]
        return (ONE if len(parts) == 1 else TWO)[self.name](*parts)

    def arguments(self) -> set[int]:
        return set().union(*({p} if isinstance(p, int) else p.arguments() for p in self.parts))


def trees(arguments: int) -> st.SearchStrategy[Drawn]:
    """Functions of up to so many arguments."""
    leaves = st.integers(0, arguments - 1)

    def grown(inner: Any) -> Any:
        one = st.builds(lambda n, x: Drawn(n, (x,)), st.sampled_from(sorted(ONE)), inner)
        two = st.builds(lambda n, x, y: Drawn(n, (x, y)), st.sampled_from(sorted(TWO)), inner, inner)
        return one | two

    return grown(grown(leaves) | leaves) | grown(leaves)


def is_pattern(drawn: Drawn, args: Any) -> bool:
    """Whether a function takes these arguments, and computes something of all of them: `where(x < y, x, x)` is `x`."""
    try:
        program: Any = jax.make_jaxpr(drawn)(*args)
        jaxpr = normalize(program)[0].jaxpr
    except (TypeError, ValueError, IndexError):
        return False
    read = {x for eqn in jaxpr.eqns for x in eqn.invars if is_var(x)}
    return set(jaxpr.invars) <= read and jaxpr.outvars[0] not in jaxpr.invars


def rule_of(drawn: Drawn, count: int) -> Any:
    """A rule with the pattern, and another value of the same type in its place."""
    before: Any = (lambda x: drawn(x)) if count == 1 else (lambda x, y: drawn(x, y))

    def marked(*args: Any) -> Any:
        return jnp.full_like(drawn(*args), 0.25)

    after: Any = (lambda x: marked(x)) if count == 1 else (lambda x, y: marked(x, y))
    return made(before, after, "other_bits")


@settings(max_examples=40)
@given(st.data())
def test_a_pattern_is_found_in_its_own_program(data: st.DataObject) -> None:
    """For a drawn pattern, ranks, dtype and place: the rule fires, and nothing else in the program changes."""
    count = data.draw(st.sampled_from([1, 2]))
    drawn = data.draw(trees(count))
    assume(drawn.arguments() == set(range(count)))
    dtype = data.draw(st.sampled_from(["float32", "bfloat16"]))
    rank = data.draw(st.sampled_from([1, 2, 3]))
    # sizes that no example has, and that differ: an axis cannot be taken for another
    shape = (5, 2, 3)[:rank]
    args = [jnp.cos(normal(k, *shape)).astype(dtype) for k in range(count)]
    assume(is_pattern(drawn, args))
    rule = rule_of(drawn, count)
    place = data.draw(st.sampled_from(["plain", "vmap", "scan", "jit"]))

    def around(middle: Callable[..., Any]) -> Callable[..., Any]:
        def program(*xs: Any) -> Any:
            # operations of no pattern: `tanh(tanh(x))` stands twice in `tanh(tanh(tanh(x)))`
            return jnp.sin(middle(*(jnp.arctan(x) for x in xs)))

        if place == "vmap":
            return lambda *xs: jax.vmap(program)(*(jnp.stack([x, 2 * x]) for x in xs))
        if place == "scan":
            return lambda *xs: jax.lax.scan(lambda c, _: (c, program(*c)), xs, None, length=2)[1]
        return jax.jit(program) if place == "jit" else program

    got = jax.jit(ag.optimize(around(drawn), rules=[rule], passes=()))(*args)
    # `rule.after` would have been written by hand in the place of `before`
    want = jax.jit(around(rule.after))(*args)
    np.testing.assert_array_equal(np.asarray(got, "float32"), np.asarray(want, "float32"))


@settings(max_examples=25)
@given(trees(2), trees(2))
def test_a_pattern_is_not_found_in_another_program(pattern: Drawn, program: Drawn) -> None:
    """Whatever is found in a program that was drawn apart from the pattern, its results are the same."""
    assume(pattern.arguments() == {0, 1})
    args = [normal(k, 3, 3) for k in (1, 2)]
    rule = made(lambda x, y: pattern(x, y), lambda x, y: pattern(x, y) + 0 * jnp.float32(1.5), "finite")
    rule.when(lambda x, y: x.size < 0 or "it has been found")
    reports: list[Any] = []
    got = jax.jit(ag.optimize(program, rules=[rule], passes=(), on_report=reports.append))(*args)
    np.testing.assert_array_equal(got, jax.jit(program)(*args))
    assert not reports[-1].fired
