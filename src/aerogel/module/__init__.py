"""Modules: immutable objects that are pytrees, and weights that are shared by being the same."""

from ._errors import FieldError as FieldError
from ._errors import FrozenError as FrozenError
from ._errors import PathError as PathError
from ._errors import StateError as StateError
from ._errors import StructureError as StructureError
from ._errors import TieError as TieError
from ._field import AbstractField as AbstractField
from ._field import field as field
from ._form import Tie as Tie
from ._methods import BoundMethod as BoundMethod
from ._module import Module as Module
from ._ties import tie as tie
from ._ties import ties as ties
from ._ties import untie as untie
from ._variable import Variable as Variable
