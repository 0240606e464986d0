"""The judge of types: is a rewritten program well formed, and of the same type as the original?"""

from aerogel import _jax
from aerogel._errors import ProgramCheckError

from .program import Program


def check_program(program: Program, like: Program) -> None:
    """Nothing, when `program` is well typed and takes and returns the same types as `like`.

    Raises:
        ProgramCheckError: it is not; says what differs.
    """
    try:
        _jax.check_jaxpr(program.jaxpr)
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
