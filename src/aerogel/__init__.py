"""Strong structure that weighs nothing: write JAX programs the natural way, run the expert's form."""

import typing as _typing
from importlib import import_module as _import_module

from ._errors import AerogelError as AerogelError
from ._errors import Disagreement as Disagreement
from ._errors import InternalError as InternalError
from ._errors import UsageError as UsageError

if _typing.TYPE_CHECKING:  # what `__getattr__` finds, for type checkers and editors
    from . import audit as audit
    from . import compiler as compiler
    from . import nn as nn
    from .compiler import RuleCheckError as RuleCheckError
    from .compiler import RuleError as RuleError
    from .compiler import assume as assume
    from .compiler import rule as rule
    from .module import AbstractField as AbstractField
    from .module import At as At
    from .module import FieldError as FieldError
    from .module import FileError as FileError
    from .module import FrozenError as FrozenError
    from .module import MismatchError as MismatchError
    from .module import Module as Module
    from .module import PathError as PathError
    from .module import SaveError as SaveError
    from .module import ShardError as ShardError
    from .module import StateError as StateError
    from .module import StructureError as StructureError
    from .module import Tie as Tie
    from .module import TieError as TieError
    from .module import Variable as Variable
    from .module import Where as Where
    from .module import at as at
    from .module import cast as cast
    from .module import combine as combine
    from .module import count_params as count_params
    from .module import field as field
    from .module import freeze as freeze
    from .module import frozen as frozen
    from .module import inference as inference
    from .module import load as load
    from .module import map_leaves as map_leaves
    from .module import partition as partition
    from .module import save as save
    from .module import shard as shard
    from .module import shard_init as shard_init
    from .module import shardings as shardings
    from .module import tie as tie
    from .module import ties as ties
    from .module import trainable as trainable
    from .module import training as training
    from .module import unfreeze as unfreeze
    from .module import untie as untie
    from .train import EMA as EMA
    from .train import AbstractLog as AbstractLog
    from .train import AbstractMetric as AbstractMetric
    from .train import Accuracy as Accuracy
    from .train import Checkpoint as Checkpoint
    from .train import Checkpoints as Checkpoints
    from .train import CSVLog as CSVLog
    from .train import EarlyStopping as EarlyStopping
    from .train import Loop as Loop
    from .train import LossScale as LossScale
    from .train import Mean as Mean
    from .train import MissingExtraError as MissingExtraError
    from .train import Optimizer as Optimizer
    from .train import Prefetched as Prefetched
    from .train import Progress as Progress
    from .train import RunningMean as RunningMean
    from .train import TensorBoardLog as TensorBoardLog
    from .train import loop as loop
    from .train import prefetch as prefetch
    from .transform import ArgumentsError as ArgumentsError
    from .transform import CarryError as CarryError
    from .transform import DerivativeError as DerivativeError
    from .transform import GradientError as GradientError
    from .transform import Jitted as Jitted
    from .transform import MemoryTakenError as MemoryTakenError
    from .transform import Prepared as Prepared
    from .transform import PreparedCost as PreparedCost
    from .transform import Summary as Summary
    from .transform import TooManyTraces as TooManyTraces
    from .transform import TuneFileWarning as TuneFileWarning
    from .transform import assert_max_traces as assert_max_traces
    from .transform import assign as assign
    from .transform import check_grads as check_grads
    from .transform import check_pass as check_pass
    from .transform import check_rule as check_rule
    from .transform import checkpoint as checkpoint
    from .transform import cond as cond
    from .transform import custom_jvp as custom_jvp
    from .transform import custom_vjp as custom_vjp
    from .transform import eval_shape as eval_shape
    from .transform import explain as explain
    from .transform import fori_loop as fori_loop
    from .transform import grad as grad
    from .transform import hessian as hessian
    from .transform import jacfwd as jacfwd
    from .transform import jacrev as jacrev
    from .transform import jit as jit
    from .transform import jvp as jvp
    from .transform import linearize as linearize
    from .transform import make_jaxpr as make_jaxpr
    from .transform import optimize as optimize
    from .transform import prepare as prepare
    from .transform import rules as rules
    from .transform import scan as scan
    from .transform import stateful as stateful
    from .transform import summary as summary
    from .transform import switch as switch
    from .transform import value_and_grad as value_and_grad
    from .transform import verify as verify
    from .transform import vjp as vjp
    from .transform import vmap as vmap
    from .transform import while_loop as while_loop

_NAMES = {
    ".compiler": "RuleCheckError RuleError assume rule",
    ".module": """
    AbstractField At FieldError FileError FrozenError MismatchError Module PathError SaveError ShardError
    StateError StructureError Tie TieError Variable Where at cast combine count_params field freeze frozen inference
    load map_leaves partition save shard shard_init shardings tie ties trainable training unfreeze untie
    """,
    ".train": """
    AbstractLog AbstractMetric Accuracy CSVLog Checkpoint Checkpoints EMA EarlyStopping Loop LossScale Mean
    MissingExtraError Optimizer Prefetched Progress RunningMean TensorBoardLog loop prefetch
    """,
    ".transform": """
    ArgumentsError CarryError DerivativeError GradientError Jitted MemoryTakenError Prepared PreparedCost Summary
    TooManyTraces TuneFileWarning assert_max_traces assign check_grads check_pass check_rule checkpoint cond
    custom_jvp custom_vjp eval_shape explain fori_loop grad hessian jacfwd jacrev jit jvp linearize make_jaxpr
    optimize prepare rules scan stateful summary switch value_and_grad verify vjp vmap while_loop
    """,
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = ["AerogelError", "Disagreement", "InternalError", "UsageError"]
__all__ += list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


# The command `aerogel` stands in this package, so Python runs this file before any script starts, and importing JAX
# takes a second or two. What needs JAX is therefore imported when it is first asked for. This is the one place that
# does so; every other file imports what it needs at its top.
def __getattr__(name: str) -> _typing.Any:
    if name in ("audit", "compiler", "nn"):
        return _import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_import_module(_HOME[name], __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "audit", "compiler", "nn"})
