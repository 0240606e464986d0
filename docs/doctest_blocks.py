"""How griffe, which reads the source for the reference, sees Aerogel's."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)


class DoctestBlocks(griffe.Extension):
    """Shows examples as code, functions rather than the files of the same name that they stand in, and constructors."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        # griffe knows examples under a heading "Examples" only; as text, ['a'] would be a link
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)

    def on_class(self, *, cls: Any, **kwargs: Any) -> None:
        # `__init__ = _Base.__init__`: the constructor is the base's, which griffe finds if it sees no attribute here
        given = cls.members.get("__init__")
        if given is not None and given.is_attribute:
            cls.del_member("__init__")

    def on_package(self, *, pkg: Any, loader: Any, **kwargs: Any) -> None:
        # `aerogel.optimize` is the function in aerogel/transform/optimize.py; griffe takes the file
        for name, member in list(pkg.members.items()):
            if member.is_alias and member.target_path.startswith(f"{pkg.name}."):
                found = loader.modules_collection[member.target_path]
                if found.is_module and name in found.members:
                    pkg.set_member(name, griffe.Alias(name, f"{found.path}.{name}", parent=pkg))
