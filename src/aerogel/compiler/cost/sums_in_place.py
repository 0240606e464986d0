"""A loop's body without the carries that it only writes windows of, or adds them to: XLA does so in place.

`carry + dynamic_update_slice(zeros, window, place)` is what the gradient of `dynamic_slice` makes. XLA's CPU backend
(jaxlib 0.10.2) reads and writes what the window covers: neither the zeros nor the sum are as long as they look.
"""

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Literal, Var


def without_sums_in_place(body: Jaxpr, constants: int, carries: int) -> tuple[Jaxpr, int, bool]:
    """The body of a `scan` with the windows as outputs in place of such carries.

    With it, how many carries it then has, and whether any window is written and not added.
    """
    makers = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    readers: dict[Var, int] = {}
    for x in (x for xs in (*(eqn.invars for eqn in body.eqns), body.outvars) for x in xs):
        if isinstance(x, Var):
            readers[x] = readers.get(x, 0) + 1
    gone, windows, dead, written = set[int](), [], set[int](), False
    for k in range(carries):
        carry, nxt = body.invars[constants + k], body.outvars[k]
        found = _added(carry, nxt, makers, readers)
        if found is None:
            found = _overwritten(carry, nxt, makers, readers)
            written |= found is not None
        if found is not None:
            gone.add(k)
            windows.append(found[0])
            dead.update(map(id, found[1]))
    if not gone:
        return body, carries, False
    invars = [v for i, v in enumerate(body.invars) if i - constants not in gone]
    outs = [v for i, v in enumerate(body.outvars) if i not in gone]
    eqns = [eqn for eqn in body.eqns if id(eqn) not in dead]
    return _jax.new_jaxpr(body, invars, [*outs, *windows], eqns), carries - len(gone), written


def _added(
    carry: Var, nxt: Var | Literal, makers: dict[Var, JaxprEqn], readers: dict[Var, int]
) -> tuple[Var, list[JaxprEqn]] | None:
    """The window that is added to a carry, and the equations that do so alone."""
    total = makers.get(nxt) if isinstance(nxt, Var) else None
    if total is None or total.primitive.name not in ("add", "add_any") or readers.get(carry) != 1:
        return None
    others = [x for x in total.invars if x is not carry]
    write = makers.get(others[0]) if len(others) == 1 and isinstance(others[0], Var) else None
    if write is None or write.primitive.name != "dynamic_update_slice" or readers[write.outvars[0]] != 1:
        return None
    into, window = write.invars[:2]
    zeros = makers.get(into) if isinstance(into, Var) else None
    if zeros is None or zeros.primitive.name != "broadcast_in_dim" or not isinstance(window, Var):
        return None
    alone = [zeros] if readers[zeros.outvars[0]] == 1 else []
    return window, [total, write, *alone]


def _overwritten(
    carry: Var, nxt: Var | Literal, makers: dict[Var, JaxprEqn], readers: dict[Var, int]
) -> tuple[Var, list[JaxprEqn]] | None:
    """The window that is written into a carry, and the equation that does so: what is stacked is no other."""
    write = makers.get(nxt) if isinstance(nxt, Var) else None
    if write is None or write.primitive.name != "dynamic_update_slice" or write.invars[0] is not carry:
        return None
    window = write.invars[1]
    if not isinstance(window, Var) or readers.get(carry) != 1 or readers[write.outvars[0]] != 1:
        return None
    return window, [write]
