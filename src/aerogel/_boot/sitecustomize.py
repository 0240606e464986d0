"""The first thing that runs in the interpreter that `aerogel run` starts. Standard library only, and little of it.

The script is run by Python itself, so that nothing about it can differ: `__main__`, arguments, tracebacks, exit
status and signals are the interpreter's own. The one thing added is this module, which Python imports at start
because its folder is first in PYTHONPATH. It removes every trace of itself (the path entry, the variables, the
module), lets the environment's own `sitecustomize` run, and waits for `jax` to be imported. Nothing is imported
here that a plain interpreter would not have imported: a script's folder may hold a `json.py` of its own.
"""

import atexit
import importlib
import os
import sys
from importlib.machinery import ModuleSpec

PREFIX = "AEROGEL_RUN_"
here = os.path.dirname(os.path.abspath(__file__))
options = {name[len(PREFIX) :].lower(): os.environ.pop(name) for name in list(os.environ) if name.startswith(PREFIX)}


def restore_environment() -> None:
    """The path and the variables as they would have been."""
    if "pythonpath" in options:
        os.environ["PYTHONPATH"] = options["pythonpath"]
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)


class JaxSpec(ModuleSpec):
    """The spec of `jax`, which says when the module is complete.

    The import system sets `_initializing` to False as its last step. A loader of ours would also be asked at the
    right time, but then its frames would stand in the traceback of an import that fails.
    """

    @property
    def _initializing(self) -> bool:
        return self.__dict__.get("_initializing", False)

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        if not value and self.name in sys.modules:
            object.__setattr__(self, "__class__", ModuleSpec)  # an ordinary spec from here on
            start()


class JaxFinder:
    """Finds `jax` as the finders after it do, and marks its spec."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of `jax`; None for all other names."""
        if name != "jax":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if type(spec) is ModuleSpec:
                    spec.__class__ = JaxSpec
                return spec
        return None


def finish_without_jax(process: int) -> None:
    """Says and writes that nothing was compiled; nothing in a forked child, which is not the script."""
    if os.getpid() != process:
        return
    if options["report"]:
        with open(options["report"], "w", encoding="utf-8") as file:
            file.write(options["empty"])
    if not options["quiet"] and sys.__stderr__ is not None and not sys.__stderr__.closed:
        sys.__stderr__.write(f"\n{options['nothing']}\n")


def start() -> None:
    """Begins to collect: `jax.jit` is replaced from here on."""
    atexit.unregister(finish_without_jax)
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not waiting]
    sys.path.insert(0, options["root"])
    try:
        from aerogel.audit import start_run
    finally:
        sys.path.remove(options["root"])
    start_run(options)


waiting = JaxFinder()
if "root" in options:
    restore_environment()
    if "jax" in sys.modules:
        start()
    else:
        sys.meta_path.insert(0, waiting)
        atexit.register(finish_without_jax, os.getpid())
    # The environment's own `sitecustomize`, if it has one, takes this module's place. If not, this raises what
    # `site` takes for "there is none", and the module is gone.
    del sys.modules["sitecustomize"]
    importlib.import_module("sitecustomize")
