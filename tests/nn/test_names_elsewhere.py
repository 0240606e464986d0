"""Every layer of Equinox's and of Flax NNX's stands in the reference: by the name it has here, or with a reason."""

import re
from importlib.util import find_spec
from pathlib import Path

import equinox as eqx
import jax
import pytest

import aerogel as ag
from aerogel import nn

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "nn.md").read_text(encoding="utf-8")


def table(title: str) -> dict[str, list[str]]:
    """The names of a library in the first column of its table, each with what stands in the others."""
    rows = PAGE.partition(f"| {title} | here |")[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:]] for row in rows if row.startswith("| `")]
    return {name: row[1:] for row in cells for name in re.findall(r"`(\w+)", row[0])}


def of_equinox() -> set[str]:
    """The public names of `equinox.nn`; those by the number of axes go by the one-dimensional one."""
    return {re.sub(r"[23]d$", "1d", name) for name in vars(eqx.nn) if name[0] != "_"}


def of_nnx() -> set[str]:
    """What `flax.nnx` imports from its layers, read from the file: importing Flax takes seconds."""
    text = _source_of_nnx()
    return set(re.findall(r"^from \.(?:nn\.\w+|helpers) import (\w+) as", text, re.MULTILINE))


def _source_of_nnx() -> str:
    spec = find_spec("flax")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return (Path(spec.submodule_search_locations[0]) / "nnx" / "__init__.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(("title", "names"), [("Equinox", of_equinox()), ("Flax NNX", of_nnx())])
def test_every_layer_elsewhere_has_its_line(title: str, names: set[str]) -> None:
    """A release that adds a layer makes this fail until it has a line; what a line names is there."""
    listed = table(title)
    written = {name for name in names if name in listed or _family(name) in listed or hasattr(jax.nn, name)}
    assert len(names) > 20
    assert names - written == set()
    for name, (here, difference, *_) in listed.items():
        if here == "the same":
            assert hasattr(nn, name)
        elif here == "-":
            assert difference
        else:
            assert here.count("`") > 1
            assert {each for each in re.findall(r"`([A-Z]\w+)", here) if not hasattr(nn, each)} == set()


def test_every_name_of_nnx_has_its_line() -> None:
    """What `flax.nnx` imports as its own, layer or not, stands in one of its two tables; what they name is there."""
    text = _source_of_nnx()
    names = set(re.findall(r"^from [\w.]+ import \w+ as (\w+)", text, re.MULTILINE))
    assert len(names) > 150
    beside = table("Flax NNX, beside layers")
    assert {name for name in names if name not in beside and name not in table("Flax NNX")} - set(vars(jax.nn)) == set()
    for here, *_ in beside.values():
        for owner, name in re.findall(r"\b(ag|nn)\.(\w+)", here):
            assert hasattr({"ag": ag, "nn": nn}[owner], name), name


def _family(name: str) -> str:
    """The first of a family that a line lists with dots: AdaptiveAvgPool1d for all adaptive pools."""
    for first in ("AdaptiveAvgPool1d", "ConvTranspose1d"):
        if name.startswith(first[:5]) and name.startswith(("Adaptive", "ConvT")):
            return first
    return name
