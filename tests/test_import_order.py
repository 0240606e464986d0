"""Imports go one way, and the internals of JAX stay behind one package.

Read from the source, not from a run: imports inside functions and under conditions count as well.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# A part may import parts to the left of it, and itself. Parts in one set do not know each other.
ORDER = [
    {"_jax", "_errors", "_launch"},
    {"module", "compiler"},
    {"transform"},
    {"nn"},
    {"compat"},
    {"train"},
    {"audit"},
    {"cli", "_boot"},
    {"__main__"},
]
# The packages of the compiler, in the same sense. Its single files (programs, levels, the pipeline) stand beside them.
COMPILER_ORDER = [
    *("axes", "cost", "known", "normal_form", "fusion", "excerpts", "networks", "rules", "sorts", "kernels"),
    *("orders", "readers", "windows", "short_axes", "residuals", "prefixes", "streams", "hoisting", "loops"),
    *("jacobians", "masks", "rolled", "judging", "passes"),
]
# Beyond the order: layers are written in terms of transformations, never of programs.
FORBIDDEN = {("nn", "compiler")}
PRIVATE = ("jax._src", "jax.extend", "jax.interpreters", "jaxlib")
# The one package that stands between; and the suite that makes JAX's own tests run, which are about its internals.
MAY_BE_PRIVATE = (SOURCE / "aerogel" / "_jax", ROOT / "tests" / "jax_suite")


@dataclass(frozen=True)
class Import:
    """One imported module or name, fully qualified, and where it stands."""

    target: str
    file: Path
    line: int
    for_types: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.target}"


def module_of(file: Path) -> str:
    """`src/aerogel/nn/__init__.py` -> `aerogel.nn`."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    """Whether the node is an `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def walk(node: ast.AST, for_types: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below `node`, and whether each is there for type checkers only."""
    for child in ast.iter_child_nodes(node):
        inside = for_types or is_type_checking(child)
        yield child, inside
        yield from walk(child, inside)


def targets(node: ast.AST, package: list[str]) -> list[str]:
    """What an import statement reaches; a relative one is resolved in `package`.

    An attribute path counts too: `jax._src.core` after `import jax` needs no import of its own.
    """
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = package[: len(package) - level + 1] if level else []
            return [".".join([*base, *([module] if module else []), alias.name]) for alias in names]
        case ast.Attribute() if ast.unparse(node).startswith(PRIVATE):
            return [ast.unparse(node)]
    return []


@cache
def imports(file: Path) -> tuple[Import, ...]:
    """Every import of a file, in order."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    package: list[str] = []
    if file.is_relative_to(SOURCE):
        package = module_of(file).split(".")
        package = package if file.name == "__init__.py" else package[:-1]
    return tuple(
        Import(target, file, node.lineno, for_types)
        for node, for_types in walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute)
        for target in targets(node, package)
    )


def part_of(name: str) -> str:
    """`aerogel.compiler.rule.Rule` -> `compiler`; the package itself is the empty string."""
    return [*name.split("."), ""][1]


def rank(part: str) -> int:
    """The place of a part in the order."""
    return next(i for i, parts in enumerate(ORDER) if part in parts)


FILES = sorted(SOURCE.rglob("*.py"))
OURS = [f for folder in ("src", "tests", "benchmarks", "examples") for f in sorted((ROOT / folder).rglob("*.py"))]


def test_every_part_has_its_place() -> None:
    """A new file or folder at the top of the package is put into the order before anything imports it."""
    assert FILES, "nothing was read: the tests below would pass on nothing"
    parts = {part_of(module_of(f)) for f in FILES} - {""}
    assert parts <= set().union(*ORDER)


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_imports_go_one_way(file: Path) -> None:
    """A part imports only what stands before it; nobody but the outside imports the package itself."""
    here = part_of(module_of(file))
    wrong = []
    for found in imports(file):
        if here == "" or found.target.split(".")[0] != "aerogel":
            continue
        there = part_of(found.target)
        is_known = any(there in parts for parts in ORDER)
        allowed = there == here or (is_known and rank(there) < rank(here) and (here, there) not in FORBIDDEN)
        if not allowed:
            wrong.append(str(found))
    assert not wrong


def test_every_package_of_the_compiler_has_its_place() -> None:
    """A new folder is put into the order before anything imports it, and into the list of CONTRIBUTING.md."""
    folders = {f.parent.name for f in (SOURCE / "aerogel" / "compiler").glob("*/__init__.py")}
    assert folders == set(COMPILER_ORDER)
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert not [name for name in folders if f"`{name}`" not in contributing]


@pytest.mark.parametrize("package", COMPILER_ORDER)
def test_packages_of_the_compiler_import_one_way(package: str) -> None:
    """Who wants to know how loops are hoisted need not know how Jacobians are found."""
    files = sorted((SOURCE / "aerogel" / "compiler" / package).rglob("*.py"))
    assert files
    before = COMPILER_ORDER[: COMPILER_ORDER.index(package) + 1]
    reached = [(found, [*found.target.split("."), "", ""]) for file in files for found in imports(file)]
    packages = [(found, parts[2]) for found, parts in reached if parts[:2] == ["aerogel", "compiler"]]
    assert not [str(found) for found, there in packages if there in COMPILER_ORDER and there not in before]


@pytest.mark.parametrize("file", OURS, ids=lambda f: str(f.relative_to(ROOT)))
def test_private_jax_is_imported_in_one_package_only(file: Path) -> None:
    """When JAX changes its internals, the change ends in `aerogel/_jax`; tests and benchmarks go through it as well."""
    private = [str(i) for i in imports(file) if f"{i.target}.".startswith(tuple(f"{p}." for p in PRIVATE))]
    assert not private or any(file.is_relative_to(place) for place in MAY_BE_PRIVATE)


def is_lazy(node: ast.stmt) -> bool:
    """Whether a statement belongs to a module's `__getattr__`, which fetches names when they are asked for."""
    names = [node.name] if isinstance(node, ast.FunctionDef) else []
    names += [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
    return is_type_checking(node) or (bool(names) and set(names) <= {"_HOME", "_NAMES", "__getattr__", "__dir__"})


@pytest.mark.parametrize("file", [f for f in FILES if f.name == "__init__.py"], ids=module_of)
def test_an_init_holds_imports_only(file: Path) -> None:
    """A package's `__init__` is its front door: a docstring, imports, perhaps `__all__`, and no code.

    The package itself is the one exception: the command starts in it, and a script without JAX must not wait for JAX.
    """
    for index, node in enumerate(ast.parse(file.read_text(encoding="utf-8")).body):
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, ast.Assign | ast.AugAssign) and ast.unparse(node).startswith("__all__")
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        may_be_lazy = module_of(file) == "aerogel" and is_lazy(node)
        assert is_docstring or is_all or is_import or may_be_lazy, ast.unparse(node)


def test_no_cycle_between_modules() -> None:
    """Files can be read one after the other; an import inside a function does not hide that they cannot."""
    modules = {module_of(f): f for f in FILES}
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        found = {i.target for i in imports(file) if not i.for_types}
        # `from .program import Program` reaches `program`, `from . import facts` reaches `facts`.
        reached = {t if t in modules else t.rpartition(".")[0] for t in found}
        graph[name] = {t for t in reached if t in modules and t != name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these modules import each other: {' <- '.join(error.args[1])}")
