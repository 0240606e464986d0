"""The judge of types: is a rewritten program well formed, and of the same type as the original?"""

from collections.abc import Container, Iterable, Iterator

from aerogel import _jax
from aerogel._errors import ProgramCheckError
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..cost.alike import kind_of
from ..kept import Kept
from ..program import Program, bodies, is_var


def check_program(program: Program, like: Program) -> None:
    """Nothing, when `program` is well typed and takes and returns the same types as `like`, which is well typed.

    JAX looks at the equations that `like` does not hold; the others are as they were, and only stand elsewhere. Of
    simple ones that differ in their variables alone it is shown the first that ever came.

    Raises:
        ProgramCheckError: it is not; says what differs.
    """
    known = set(_bodies(like.jaxpr))
    equations = {id(eqn) for level in (like.jaxpr, *known) for eqn in level.eqns}
    new = dict.fromkeys(body for body in _bodies(program.jaxpr) if body not in known)
    try:
        for level in (program.jaxpr, *(body for body in new if not _is_per_device(body))):
            unknown = _unknown_part(level, equations)
            if unknown.eqns:
                _jax.check_jaxpr(unknown)
                _remember(unknown.eqns)
    except _jax.JaxprTypeError as error:
        raise ProgramCheckError(what="the program is ill typed.", got=str(error).split("\n")[0]) from error
    pairs = [
        ("argument", program.jaxpr.invars, like.jaxpr.invars),
        ("result", program.jaxpr.outvars, like.jaxpr.outvars),
    ]
    for kind, got, wanted in pairs:
        if len(got) != len(wanted):
            raise ProgramCheckError(what=f"the number of {kind}s changed.", got=str(len(got)), wanted=str(len(wanted)))
        for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
            if not _jax.same_type(a.aval, b.aval):
                raise ProgramCheckError(
                    what=f"the type of {kind} {index} changed.", got=str(a.aval), wanted=str(b.aval)
                )


def _unknown_part(jaxpr: Jaxpr, known: Container[int]) -> Jaxpr:
    """The equations that are not known, as a jaxpr of what they read; all of `jaxpr` if one has effects.

    Raises:
        ProgramCheckError: a variable is read before it is made, or made twice.
    """
    made = {*jaxpr.constvars, *jaxpr.invars}
    new: list[JaxprEqn] = []
    reads: dict[Var, None] = {}
    settings = _jax.trace_key()
    for eqn in jaxpr.eqns:
        if eqn.effects:
            return jaxpr  # whose effects they are is known in the whole only
        inputs = [x for x in eqn.invars if is_var(x)]
        if not made.issuperset(inputs):
            raise ProgramCheckError(what="a variable is read before it is made.", got=str(eqn))
        outs = [v for v in eqn.outvars if not isinstance(v, _jax.DropVar)]
        if not made.isdisjoint(outs):
            raise ProgramCheckError(what="a variable is made twice.", got=str(eqn))
        made.update(outs)
        if id(eqn) not in known and not _well_typed.get((settings, kind_of(eqn))):
            new.append(eqn)
            reads.update(dict.fromkeys(inputs))
    if not made.issuperset(x for x in jaxpr.outvars if is_var(x)):
        raise ProgramCheckError(what="no equation makes a variable that is a result.")
    own = {v for eqn in new for v in eqn.outvars}
    return _jax.new_jaxpr(jaxpr, [x for x in reads if x not in own], [], new)


_well_typed = Kept[bool](4096)  # kinds of equations that JAX was shown


def _remember(eqns: Iterable[JaxprEqn]) -> None:
    settings = _jax.trace_key()
    for kind in map(kind_of, eqns):
        if kind is not None:
            _well_typed.put((settings, kind), True)


def _is_per_device(body: Jaxpr) -> bool:
    """Whether a body stands in a `shard_map`: its types hold in there only."""
    variables = [*body.invars, *(v for eqn in body.eqns for v in eqn.outvars)]
    return any(_jax.explicit_mesh(v.aval) for v in variables)


def _bodies(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """The bodies of loops and branches, at any depth: JAX's check of a loop looks at its types only, not inside."""
    for eqn, held in bodies(jaxpr):
        for inner in held:
            if eqn.primitive.name in ("scan", "while", "cond"):
                yield inner
            yield from _bodies(inner)
