"""The user's lines: whose frames are shown in tracebacks, and where an equation was written."""

import contextlib
import os

from jax._src import source_info_util, traceback_util
from jax.extend.core import ClosedJaxpr, JaxprEqn


def exclude_from_tracebacks(path: str) -> None:
    """Frames of the file `path` disappear from JAX's filtered tracebacks and from source lines."""
    traceback_util.register_exclusion(path)
    source_info_util.register_exclusion(path)


api_boundary = traceback_util.api_boundary


# Unwrapping of errors: frames of ours are not the user's. All that is in these folders.
for _folder in ("_jax", "module", os.path.join("compiler", "rules")):
    exclude_from_tracebacks(os.path.join(os.path.dirname(os.path.dirname(__file__)), _folder) + os.sep)

INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def source_lines(eqn: JaxprEqn) -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made the equation; None if it was none of the user's.

    An installed package counts as the user's only if no caller stands outside of one.
    """
    return _lines(eqn.source_info)


def lines_now() -> tuple[str, int, str] | None:
    """The same for what is computed now: the line that a transformation is at, or that which called us."""
    return _lines(source_info_util.current())


def _lines(found: source_info_util.SourceInfo) -> tuple[str, int, str] | None:
    frames = list(source_info_util.user_frames(found.traceback))
    own = (frame for frame in frames if not any(name in frame.file_name for name in INSTALLED))
    frame = next(own, frames[0] if frames else None)
    return None if frame is None else (frame.file_name, frame.start_line, frame.function_name)


def equation_context(eqn: JaxprEqn) -> contextlib.AbstractContextManager:
    """The context (compute_on, PRNG layout, mesh, metadata) that the equation was made in."""
    return eqn.ctx.manager


def under_scope(eqn: JaxprEqn, call: JaxprEqn, name: str) -> JaxprEqn:
    """An equation taken out of a call keeps the call's named scopes in front of its own."""
    outer, inner = call.source_info, eqn.source_info
    stack = outer.name_stack + source_info_util.new_name_stack(f"jit({name})") + inner.name_stack
    return eqn.replace(source_info=inner.replace(name_stack=stack))


def derivative_of(eqn: JaxprEqn) -> str | None:
    """Which transformation wrote an equation: "transpose" what goes back, "jvp" what goes along; None for neither.

    What a function computes anyway while it is differentiated is written by "jvp", too.
    """
    names = [one.name for one in eqn.source_info.name_stack.stack if isinstance(one, source_info_util.Transform)]
    return next((name for name in names if name in ("transpose", "jvp")), None)


def without_derivative_scopes(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program of a `jax.vjp` with the named scopes of what was differentiated, no `transpose(jvp(...))` around.

    So is the gradient of what stands in a `jax.jit`, whose caller's scopes come in front.
    """

    def named(eqn: JaxprEqn) -> JaxprEqn:
        stack = eqn.source_info.name_stack.stack
        for ours in ("transpose", "jvp"):
            if stack and stack[0] == source_info_util.Transform(ours):
                stack = stack[1:]
        return eqn.replace(source_info=eqn.source_info.replace(name_stack=source_info_util.NameStack(stack)))

    return program.replace(jaxpr=program.jaxpr.replace(eqns=[named(eqn) for eqn in program.jaxpr.eqns]))


@contextlib.contextmanager
def bound_like(eqn: JaxprEqn):
    """What is bound inside gets the equation's source line, name stack and context, as in `core.eval_jaxpr`."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack), eqn.ctx.manager:
        yield
