"""Types of a program's parts, for pyright only: those members that Aerogel uses, as of jax 0.10.2.

JAX declares `aval` as AbstractValue, which has neither shape nor dtype, so that every look at a shape would be an
error; all values in a program have both. Everything else of JAX is read from JAX itself.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

class Var:
    aval: Any
    def __init__(self, aval: Any) -> None: ...

class Literal:
    aval: Any
    val: Any
    def __init__(self, val: Any, aval: Any) -> None: ...

class Primitive:
    name: str
    multiple_results: bool
    def __init__(self, name: str) -> None: ...
    def bind(self, *args: Any, **params: Any) -> Any: ...
    def def_impl(self, impl: Callable[..., Any]) -> Any: ...
    def get_bind_params(self, params: dict[str, Any]) -> Any: ...
    def def_abstract_eval(self, rule: Callable[..., Any]) -> Any: ...

class JaxprEqn:
    invars: list[Var | Literal]
    outvars: list[Var]
    primitive: Primitive
    params: dict[str, Any]
    effects: Any
    source_info: Any
    ctx: Any
    def replace(self, **changes: Any) -> JaxprEqn: ...

class Jaxpr:
    constvars: list[Var]
    invars: list[Var]
    outvars: list[Var | Literal]
    eqns: list[JaxprEqn]
    effects: Any
    debug_info: Any
    is_high: bool
    def __init__(
        self,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[Any],
        eqns: Sequence[JaxprEqn],
        effects: Any = ...,
        debug_info: Any = ...,
        is_high: bool = ...,
    ) -> None: ...
    def replace(self, **changes: Any) -> Jaxpr: ...

class ClosedJaxpr:
    jaxpr: Jaxpr
    consts: Sequence[Any]
    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> None: ...
    in_avals: list[Any]
    out_avals: list[Any]
    literals: list[Any]
    eqns: list[JaxprEqn]
    effects: Any
    def replace(self, *, jaxpr: Jaxpr = ..., consts: Sequence[Any] = ...) -> ClosedJaxpr: ...

def check_jaxpr(jaxpr: Jaxpr) -> None: ...
def jaxprs_in_params(params: dict[str, Any]) -> Iterator[Jaxpr]: ...
