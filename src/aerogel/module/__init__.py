"""Modules: immutable objects that are pytrees, and weights that are shared by being the same."""

from ._at import At as At
from ._at import at as at
from ._count import count_params as count_params
from ._errors import FieldError as FieldError
from ._errors import FrozenError as FrozenError
from ._errors import PathError as PathError
from ._errors import StructureError as StructureError
from ._errors import TieError as TieError
from ._field import AbstractField as AbstractField
from ._field import field as field
from ._form import Tie as Tie
from ._frozen import freeze as freeze
from ._frozen import frozen as frozen
from ._frozen import trainable as trainable
from ._frozen import unfreeze as unfreeze
from ._methods import BoundMethod as BoundMethod
from ._module import Module as Module
from ._partition import cast as cast
from ._partition import combine as combine
from ._partition import map_leaves as map_leaves
from ._partition import partition as partition
from ._select import Where as Where
from ._ties import tie as tie
from ._ties import ties as ties
from ._ties import untie as untie
