"""Derivatives that rules bring along: what a rule writes, as a function that JAX differentiates as it is told."""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from ..record import record


@record
class Derivative:
    """The derivative of what a rule writes, in JAX's own terms.

    Attributes:
        jvp: what `jax.custom_jvp.defjvp` takes; None with `forward` and `backward`.
        forward: what `jax.custom_vjp.defvjp` takes first.
        backward: and second.
    """

    jvp: Callable[..., Any] | None = None
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None

    @property
    def functions(self) -> tuple[Any, ...]:
        """What it says, for the fingerprint of its rule."""
        return self.jvp, self.forward, self.backward

    def given_to(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with this derivative. Its keyword-only parameters go to those of its derivative that take them."""

        def with_derivative(*arrays: Any, **parameters: Any) -> Any:
            def value(*xs: Any) -> Any:
                return function(*xs, **parameters)

            if self.jvp is not None:
                made: Any = jax.custom_jvp(value)
                made.defjvp(_bound(self.jvp, parameters))
            else:
                assert self.forward is not None
                assert self.backward is not None
                made = jax.custom_vjp(value)
                made.defvjp(_bound(self.forward, parameters), _bound(self.backward, parameters))
            return made(*arrays)

        return with_derivative


def _bound(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    taken = {name: value for name, value in parameters.items() if name in inspect.signature(function).parameters}
    return lambda *args: function(*args, **taken)
