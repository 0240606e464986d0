"""The form and the text of every error, and that its page exists."""

import builtins
import inspect
import pickle
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import aerogel
from aerogel import _errors, compat, module, nn, train, transform
from aerogel._errors import (
    AerogelError,
    Disagreement,
    ErrorText,
    InternalError,
    PassFailedWarning,
    ProgramCheckError,
    UsageError,
)
from aerogel.compat._errors import CompatError, MissingImportError, MissingNameError
from aerogel.compiler.rules import errors as rule_errors
from aerogel.compiler.rules.errors import RewriteCycle, RuleCheckError, RuleError
from aerogel.module import (
    FieldError,
    FileError,
    FrozenError,
    MismatchError,
    PathError,
    SaveError,
    ShardError,
    StateError,
    StructureError,
    TieError,
)
from aerogel.module.files._errors import Difference
from aerogel.nn import InputError, MissingKeyError
from aerogel.train import MissingExtraError
from aerogel.transform import (
    ArgumentsError,
    CarryError,
    DerivativeError,
    GradientError,
    MemoryTakenError,
    TooManyTraces,
    TuneFileWarning,
)

PAGES = Path(__file__).parents[1] / "docs" / "errors"

# Golden files by name; the first of each code also stands on its page.
SAMPLES: dict[str, AerogelError] = {
    "AG001": UsageError(argument="numerics", got="fst", wanted=["strict", "fast"], function="optimize"),
    "AG001-nothing-near": UsageError(argument="numerics", got=32, wanted=["strict", "fast"]),
    "AG001-described": UsageError(argument="report", got="out.html", wanted="a file name that ends in .json or .txt"),
    "AG002": InternalError(
        what="a variable is read before it is made.",
        where="model.py:41 in attend",
        program="{ lambda ; a:f32[8]. let\n    c:f32[8] = mul b a\n  in (c,) }",
    ),
    "AG101": FrozenError(place="Linear.weight", action="model.weight = ...", edit=".weight"),
    "AG101-list": FrozenError(
        place="model.layers",
        action="append(...)",
        edit=".layers",
        to_fix="make a changed copy: new = ag.at(model).layers.set(value); "
        "for a part, in an `__init__`: self.part.layers = value",
    ),
    "AG101-part": FrozenError(
        place="Linear.weight",
        action="model.weight = ...",
        edit=".weight",
        to_fix="write it from `self`, once self holds the part: self.part.weight = ...; "
        "else: part = ag.at(part).weight.set(value)",
    ),
    "AG102": StructureError(
        what="a value that is not an array is structure, and structure must be hashable.",
        place="Model.options",
        got=bytearray(b"abc"),
        wanted="a hashable value",
        to_fix="make its class a frozen dataclass or a Module",
    ),
    "AG103": FieldError(
        what="`width` is not declared as a field.",
        place="Linear.__init__",
        to_fix="declare it in the class: width: int",
    ),
    "AG104": PathError(path="layers[0].wieght", inside="Model", nearest=["layers[0].weight", "layers[1].weight"]),
    "AG104-nothing-near": PathError(path="optimizer", inside="Model"),
    "AG105": TieError(
        what="nothing is tied there.", place="head.weight", to_fix="name one of the tied places: decoder.weight"
    ),
    "AG106": FileError(
        what="the file is cut off.",
        place="model.safetensors",
        got="1048 bytes of arrays",
        wanted="4096",
    ),
    "AG107": MismatchError(
        place="model.safetensors, saved from a `Model`",
        differences=[
            Difference("missing", "head.weight", in_tree="f32[10,64]"),
            Difference("shape", "embed.weight", "f32[1000,64]", "f32[1024,64]"),
            Difference("dtype", "layers[0].bias", "f32[64]", "bf16[64]"),
            Difference("unexpected", "heads.weight", in_file="f32[10,64]"),
        ],
        to_fix="if the names changed: load(..., rename={'heads.weight': 'head.weight'})",
    ),
    "AG107-copies": MismatchError(
        place="pytorch.safetensors",
        differences=[Difference("copies", "head.weight", in_file="not what embed.weight is")],
        to_fix="untie the places in `like`, or drop one of the arrays with `rename`",
    ),
    "AG108": SaveError(
        what="a traced array has no values yet.",
        place="layers[0].weight",
        got="f32[64,64]",
        to_fix="save outside of jit, grad and vmap",
    ),
    "AG111": StateError(
        what="under `vmap`, what a variable is set to must be one value for all elements.",
        place="model.norm.mean, at norm.py:12",
        to_fix="take it over the mapped axis, jax.lax.pmean(value, axis_name); or map over ag.stateful(f)",
    ),
    "AG111-type": StateError(
        what="a variable keeps its shape and dtype.",
        place="model.count",
        got="f32[]",
        wanted="i32[]",
        to_fix="convert it: .set(value.astype('int32'))",
    ),
    "AG112": ShardError(
        what="axis 0 of size 10 cannot be split into 4 equal parts.",
        place="head.weight: f32[10,64], by rules['**.weight']",
        got="PartitionSpec('model', None)",
        wanted="a divisor of 10",
        to_fix="write None there, in a rule for this leaf before this one",
    ),
    "AG201": ProgramCheckError(
        what="the type of result 0 changed.",
        where="model.py:41 in attend:   d:f16[8,64] = div b c",
        got="f32[8,64]",
        wanted="f16[8,64]",
    ),
    "AG201-bare": ProgramCheckError(what="the number of results changed.", got="2", wanted=""),
    "AG202": PassFailedWarning(
        pass_name="loop-fusion", function="loss", reason="KeyError: 'axis'", where="model.py:41 in attend"
    ),
    "AG202-bare": PassFailedWarning(pass_name="normalize", reason="PassTimeout"),
    "AG203": RuleError(
        rule="div-to-rsqrt",
        what="changed the type of a result.",
        where="rules.py:12",
        got="f32[8,64]",
        wanted="f16[8,64]",
        to_fix="convert inside `after`, or refuse these types with `when`",
    ),
    "AG204": RuleCheckError(
        rule="log-of-one-plus",
        what="does not fire.",
        where="`<lambda>` (rules.py:12) at f32[4,4]",
        got="expected the number 1.0, found the number 2.0",
        to_fix="make `before` trace to what stands in that program",
    ),
    "AG207": RewriteCycle(rules=["mul-to-square", "square-to-mul"], where="net.py:12 in energy"),
    "AG207-one": RewriteCycle(rules=["grow"], where="net.py:12 in energy", rounds=24),
    "AG301": Disagreement(
        function="loss",
        path="result['loss']",
        got=1.25,
        wanted=1.0,
        error="2097152 ulp",
        tolerance="64 ulp",
    ),
    "AG301-type": Disagreement(function="loss", path="result[0]", got="f16[8]", wanted="f32[8]"),
    "AG302": TooManyTraces(function="step", traces=2, allowed=1, changes="batch['x']  f32[8,4] -> f32[7,4]"),
    "AG302-none": TooManyTraces(function="step", traces=1, allowed=0, changes=""),
    "AG303": GradientError(
        what="nothing in the arguments has a gradient.",
        place="`grad(loss)`, arguments 0",
        got="argument 0: i32[]",
        wanted="an array of floating-point numbers that is not frozen",
        to_fix="pass 1.0 for 1, choose another argument with `argnums`, or other parts with `wrt`",
    ),
    "AG304": CarryError(loop="scan", path="carry.layers[0].scale", got="2.0", wanted="1.0"),
    "AG305": ArgumentsError(function="loss", changes="activation  relu -> tanh"),
    "AG306": TuneFileWarning(
        path="/home/me/.cache/aerogel/tuned/0c9a.json",
        reason="JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    ),
    "AG311": MemoryTakenError(
        what="the memory of an array that `loss` was given is taken.",
        place="a call of the prepared `loss`",
        got="out.weight  f32[3,3], deleted",
        to_fix="use the newest result: what is given as `out` is gone, the result stands where it was",
    ),
    "AG312": DerivativeError(
        what="the derivative of `loss` is not that of its values.",
        place="`loss`, reverse mode",
        got="result by params['w'][1, 2]  4, wanted 2 by a complex step",
        to_fix="mend the rule of its derivative; where the values are rounded, allow more: rtol=, eps=",
    ),
    "AG501": CompatError(
        what="a leaf has another type, shape or dtype in the file than in `like`.",
        place="tree_deserialise_leaves, tree.layers[0].weight",
        got="f32[4,3]",
        wanted="f32[3,4]",
        to_fix="pass a `like` of the structure and types that were written",
    ),
    "AG502": MissingNameError(
        missing="filter_pmap",
        namespace="aerogel.compat.equinox",
        to_fix="JAX replaced pmap by jit over shardings: use filter_jit and filter_shard",
    ),
    "AG503": MissingImportError(missing="filtr_jit", namespace="aerogel.compat.equinox", to_fix="write `filter_jit`"),
    "AG601": InputError(
        what="the input has another shape than the layer takes.",
        place="model.layers[0] (Linear)",
        got="f32[8,5]",
        wanted="f32[...,3]",
    ),
    "AG601-channels": InputError(
        what="the input has another shape than the layer takes.",
        place="GroupNorm",
        got="f32[8,6]",
        wanted="f32[...,6,space,space]",
        to_fix="channels come before space; say how many axes of space there are: num_spatial_dims=",
    ),
    "AG602": MissingKeyError(place="model.dropout (Dropout)"),
    "AG701": MissingExtraError(package="tensorboardX", purpose="ag.TensorBoardLog", extra="train"),
}

HOMES = (
    _errors,
    rule_errors,
    module._errors,
    module.files._errors,
    transform._errors,
    compat._errors,
    nn._errors,
    train._errors,
)  # the files in which errors are written
CLASSES = list(
    {c: None for home in HOMES for c in vars(home).values() if isinstance(c, type) and issubclass(c, AerogelError)}
)
FINAL = [c for c in CLASSES if hasattr(c, "code")]


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_the_golden_one(name: str, golden: Callable[[str, str], None]) -> None:
    """The whole text of an error is part of the API: it changes only on purpose."""
    golden(f"errors/{name}.txt", str(SAMPLES[name]))


def test_every_class_has_a_sample() -> None:
    """A new class of errors comes with a code and its golden text; only what others are made of has none."""
    bases = {base for cls in CLASSES for base in cls.__mro__[1:]}
    assert set(CLASSES) - bases == set(FINAL)
    assert {type(error) for error in SAMPLES.values()} == set(FINAL)


def test_codes_are_unique_and_have_a_page_each() -> None:
    """A code is the address of one page, and every page belongs to a code."""
    codes = [c.code for c in FINAL]
    assert len(codes) == len(set(codes))
    assert {page.stem for page in PAGES.glob("AG*.md")} == set(codes)


@pytest.mark.parametrize("cls", FINAL, ids=lambda c: c.__name__)
def test_page_names_the_class_and_shows_the_text(cls: type[AerogelError]) -> None:
    """What a user pastes into a search box stands on the page."""
    page = (PAGES / f"{cls.code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {cls.code}: {cls.__name__}\n")
    assert f"```text\n{cls.__module__}.{cls.__name__}: {SAMPLES[cls.code]}\n```" in page


@pytest.mark.parametrize("cls", FINAL, ids=lambda c: c.__name__)
def test_derives_from_a_builtin(cls: type[AerogelError]) -> None:
    """`except ValueError` and its like, in code that has never heard of Aerogel, still catch."""
    builtins = [b for b in cls.__mro__ if b.__module__ == "builtins" and not issubclass(AerogelError, b)]
    assert builtins


@pytest.mark.parametrize("name", SAMPLES)
def test_survives_pickling(name: str) -> None:
    """An error leaves a worker process with its text and its fields."""
    error = SAMPLES[name]
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("cls", [AerogelError, *FINAL], ids=lambda c: c.__name__)
def test_is_imported_from_the_door_that_tracebacks_name(cls: type[AerogelError]) -> None:
    """`except aerogel.UsageError:` can be written down from the traceback."""
    assert getattr(import_module(cls.__module__), cls.__name__) is cls


def test_lines_stand_in_order_and_values_are_indented() -> None:
    """What, where, got and wanted, what to do; a value of two lines stays below its label."""
    text = ErrorText(what="what.", where="here", got="a\nb", wanted="c", to_fix="do").render("AG999")
    lines = ["[AG999] what.", "  where    here", "  got      a", "           b   (wanted c)", "  to fix   do"]
    assert text.splitlines() == lines


def test_a_long_value_is_cut() -> None:
    """A mistaken array or program does not fill the screen."""
    text = str(UsageError(argument="numerics", got="x" * 10_000, wanted=["fast"]))
    assert len(text) < 600
    assert re.search(r"\.\.\.", text)


def promised(obj: object) -> list[str]:
    """The errors under `Raises:` in a docstring."""
    _, _, rest = (inspect.getdoc(obj) or "").partition("Raises:\n")
    found = re.findall(r"^    ((?:\w+, )*\w+): ", rest.partition("\n\n")[0], re.MULTILINE)
    return [name for names in found for name in names.split(", ")]


def test_promises_are_found() -> None:
    """Without this, the next test could not fail."""
    assert promised(aerogel.jit) == ["UsageError", "StructureError", "TypeError"]
    assert promised(aerogel.load) == ["MismatchError", "FileError", "OSError"]


@pytest.mark.parametrize("name", sorted(n for n in aerogel.__all__ if callable(getattr(aerogel, n))))
def test_errors_that_a_public_name_promises_are_public_too(name: str) -> None:
    """Each is Python's, or Aerogel's: then users can import it by the name in the docstring, and it has a page."""
    public = getattr(aerogel, name)
    methods = [each for key, each in vars(public).items() if key[0] != "_"] if isinstance(public, type) else []
    for error in (error for each in (public, *methods) for error in promised(each)):
        cls = getattr(aerogel, error, None) or getattr(builtins, error)
        assert cls in CLASSES or cls.__module__ == "builtins"
