"""`aerogel run`: what happened to every compiled function of a script, as data and as text."""

from ._data import FunctionRow as FunctionRow
from ._data import Measurement as Measurement
from ._data import RunReport as RunReport
from ._data import to_json as to_json
from ._render import to_text as to_text
from ._session import start_run as start_run
