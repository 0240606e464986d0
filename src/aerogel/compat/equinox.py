"""Equinox's public names, for scripts that change one line: `from aerogel.compat import equinox as eqx`.

Modules are Aerogel's: their arrays are their leaves, and everything else is structure. What is missing says why.
"""

import sys
import warnings
from typing import Any, NoReturn

from jax import clear_caches as clear_caches

from aerogel.module import AbstractField as _AbstractField
from aerogel.module import Module as Module
from aerogel.module import field as field

from . import _nn
from ._errors import CompatError as CompatError
from ._errors import MissingImportError as MissingImportError
from ._errors import MissingNameError as MissingNameError
from ._files import default_deserialise_filter_spec as default_deserialise_filter_spec
from ._files import default_serialise_filter_spec as default_serialise_filter_spec
from ._files import tree_deserialise_leaves as tree_deserialise_leaves
from ._files import tree_serialise_leaves as tree_serialise_leaves
from ._filters import combine as combine
from ._filters import filter as filter
from ._filters import partition as partition
from ._leaves import is_array as is_array
from ._leaves import is_array_like as is_array_like
from ._leaves import is_inexact_array as is_inexact_array
from ._leaves import is_inexact_array_like as is_inexact_array_like
from ._missing import refusal as _refusal
from ._partial import Partial as Partial
from ._rules import filter_custom_jvp as filter_custom_jvp
from ._rules import filter_custom_vjp as filter_custom_vjp
from ._transforms import filter_checkpoint as filter_checkpoint
from ._transforms import filter_closure_convert as filter_closure_convert
from ._transforms import filter_eval_shape as filter_eval_shape
from ._transforms import filter_grad as filter_grad
from ._transforms import filter_hessian as filter_hessian
from ._transforms import filter_jacfwd as filter_jacfwd
from ._transforms import filter_jacrev as filter_jacrev
from ._transforms import filter_jit as filter_jit
from ._transforms import filter_jvp as filter_jvp
from ._transforms import filter_make_jaxpr as filter_make_jaxpr
from ._transforms import filter_pure_callback as filter_pure_callback
from ._transforms import filter_shard as filter_shard
from ._transforms import filter_value_and_grad as filter_value_and_grad
from ._transforms import filter_vjp as filter_vjp
from ._transforms import filter_vmap as filter_vmap
from ._transforms import if_array as if_array
from ._tree import apply_updates as apply_updates
from ._tree import tree_at as tree_at
from ._tree import tree_equal as tree_equal
from ._tree import tree_flatten_one_level as tree_flatten_one_level
from ._tree import tree_inference as tree_inference
from ._tree import tree_pformat as tree_pformat
from ._tree import tree_pprint as tree_pprint

AbstractVar = _AbstractField
AbstractClassVar = _AbstractField
nn = _nn
sys.modules[f"{__name__}.nn"] = _nn  # for `from aerogel.compat.equinox.nn import Linear`: this is no package

_ERRORS = "errors at run time are not Aerogel's: `import equinox` for this one, or use jax.experimental.checkify"

# Public names of Equinox that are not here, each with the reason and what to do instead.
MISSING = {
    "Enumeration": "it serves error_if; `import equinox` for this one: its items are pytrees that Aerogel takes",
    "EquinoxRuntimeError": _ERRORS,
    "EquinoxTracetimeError": _ERRORS,
    "StrictConfig": "Equinox deprecated it: abstract classes with ag.AbstractField need no strictness",
    "branched_error_if": _ERRORS,
    "debug": "these are tools for a program that runs under Equinox: use jax.debug, and ag.explain",
    "error_if": _ERRORS,
    "filter_pmap": "JAX replaced pmap by jit over shardings: use filter_jit and filter_shard",
    "internal": "what is internal to Equinox has no promise to keep",
    "module_update_wrapper": "it gives modules that wrap functions their names: use functools.wraps on a function",
    "tree_check": "it refuses modules that stand in two places, and in Aerogel these are tied: see ag.ties",
}


def static_field(**options: Any) -> Any:
    """`field(static=True, ...)`. Deprecated by Equinox."""
    warnings.warn("`static_field` is deprecated: use `field(static=True)`", stacklevel=2)
    return field(static=True, **options)


def __getattr__(name: str) -> NoReturn:
    public = [each for each in globals() if not each.startswith("_") and each != "MISSING"]
    raise _refusal(name, __name__, public, MISSING.get(name))
