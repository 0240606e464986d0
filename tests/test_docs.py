"""All code in the documentation runs, docstrings included."""

import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import aerogel

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[tuple[int, str]]:
    """The line that each Python snippet of a page starts at, and its code."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent, code = match.groups()
        line = text.count("\n", 0, match.start(2)) + 1
        found.append((line, re.sub(f"^{indent}", "", code, flags=re.MULTILINE)))
    return found


WITH_CODE = [page for page in PAGES if snippets(page)]


def test_snippets_are_found() -> None:
    """The README shows code: without this line, a fence that is spelt differently would go untested."""
    assert ROOT / "README.md" in WITH_CODE


def test_every_page_stands_in_the_navigation() -> None:
    """`make docs` is strict: it fails where a page is not listed."""
    listed = set(re.findall(r"(?:: |- |/)([\w/.-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    docs = ROOT / "docs"
    assert {str(page.relative_to(docs)) for page in docs.rglob("*.md")} == listed


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The snippets of a page run one after the other, as one module; a traceback names the line of the page."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("snippets")
    monkeypatch.setitem(sys.modules, "snippets", module)  # dataclasses look their module up there
    for line, code in snippets(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), vars(module))


MODULES = [m.name for m in pkgutil.walk_packages(aerogel.__path__, "aerogel.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    """What a docstring shows after `>>>` is what comes out."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
