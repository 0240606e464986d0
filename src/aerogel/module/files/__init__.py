"""Arrays of a tree in a file, and back."""

from ._errors import FileError as FileError
from ._errors import MismatchError as MismatchError
from ._errors import SaveError as SaveError
from ._load import load as load
from ._save import save as save
