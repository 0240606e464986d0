"""Shows the examples of docstrings, which are doctests, as code: griffe knows them only under a heading "Examples"."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)


class DoctestBlocks(griffe.Extension):
    """Fences every paragraph that begins with `>>>`."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
