"""Scripts of Equinox's users print the same with `from aerogel.compat import equinox as eqx`."""

import contextlib
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel.compat import equinox as ours

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
IMPORT = "import equinox as eqx\n"


def printed(code: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a script prints."""
    module = ModuleType("script")
    monkeypatch.setitem(sys.modules, "script", module)  # dataclasses look their module up there
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(file), "exec"), vars(module))
    return out.getvalue()


@pytest.mark.usefixtures("quick_to_compile")
@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Equinox warns of jitted methods
def test_a_script_runs_by_changing_its_import(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line that it prints is the same."""
    code = file.read_text(encoding="utf-8")
    changed = code.replace(IMPORT, "from aerogel.compat import equinox as eqx\n")
    assert changed != code
    wanted = printed(code, file, monkeypatch)
    assert len(wanted.splitlines()) >= 4
    assert printed(changed, file, monkeypatch) == wanted


def public(namespace: object) -> set[str]:
    """The public names of a module, without the modules of Python that it imports."""
    return {n for n in dir(namespace) if not n.startswith("_")} - {"importlib"}


def test_every_public_name_is_there_or_has_a_reason() -> None:
    """A name that Equinox adds fails here, until it is provided or refused in words."""
    provided = {name for name in public(equinox) if hasattr(ours, name)}
    assert provided | set(ours.MISSING) == public(equinox)
    assert not provided & set(ours.MISSING)


@pytest.mark.parametrize("name", sorted(ours.MISSING))
def test_a_missing_name_says_why(name: str) -> None:
    """The error of a name that is not there holds its reason."""
    with pytest.raises(AttributeError) as caught:
        getattr(ours, name)
    assert ours.MISSING[name] in str(caught.value)


@pytest.mark.parametrize("name", ["filter_pmap", "filtr_jit", "nothing_like_it"])
def test_an_import_of_a_missing_name_says_what_the_name_itself_says(name: str) -> None:
    """Python's own ImportError would hide the reason, the nearest names and what to do."""
    with pytest.raises(ImportError) as imported:
        exec(f"from aerogel.compat.equinox import filter_jit, {name}", {})
    with pytest.raises(AttributeError) as asked:
        getattr(ours, name)
    assert type(imported.value) is ours.MissingImportError
    assert vars(imported.value) == vars(asked.value)
    assert not hasattr(ours, name)
    assert ("write `filter_jit`" in str(imported.value)) == (name == "filtr_jit")


def test_the_namespace_of_layers_is_imported_as_in_equinox() -> None:
    """`import equinox.nn` and `from equinox.nn import ...` work by changing their beginnings."""
    known: dict[str, Any] = {}
    exec("import aerogel.compat.equinox.nn as nn\nfrom aerogel.compat.equinox.nn import inference_mode", known)
    assert known["nn"] is ours.nn
    assert known["inference_mode"] is ours.nn.inference_mode


def test_every_layer_is_there() -> None:
    """All public names of `equinox.nn` are provided, and a name like one of them is told the nearest."""
    assert {name for name in public(equinox.nn) if not hasattr(ours.nn, name)} == set()
    with pytest.raises(AttributeError, match="write `Linear`"):
        ours.nn.Lienar  # noqa: B018


def test_the_reference_lists_what_is_missing() -> None:
    """Each name that is not provided stands on the page, with its reason."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "equinox.md").read_text(encoding="utf-8")
    assert [name for name, reason in ours.MISSING.items() if f"| `{name}` | {reason} |" not in page] == []


class Scale(ours.Module):
    factor: jax.Array
    power: int

    def __call__(self, x: jax.Array) -> jax.Array:
        return (self.factor * x) ** self.power


def test_a_compiled_module_holds_no_constants() -> None:
    """The arrays of a module that is compiled, or of the module of a method, are arguments of the program."""
    for compiled in (ours.filter_jit(Scale(jnp.ones(3), 2)), ours.filter_jit(Scale(jnp.ones(3), 2).__call__)):
        assert compiled(jnp.ones(3)).tolist() == [1.0, 1.0, 1.0]
        assert len(jax.tree.leaves(compiled.lower(jnp.ones(3)).in_avals)) == 2


def test_a_compiled_function_is_optimised_under_its_own_name() -> None:
    """The name of the function is that of the program, and what is static does not trace again."""
    traces = []

    @ours.filter_jit
    def double(x: Any, n: int) -> Any:
        traces.append(type(n))
        return n * x, n

    for _ in range(3):
        assert double(jnp.ones(2), 3)[1] == 3
    double(jnp.ones(2), 3.0)
    assert traces == [int, float]
    assert double.__name__ == "double"
    assert "jit_double" in double.lower(jnp.ones(2), 3).as_text()
    with pytest.raises(ValueError, match=r"AG001.*'al'"):
        ours.filter_jit(double, donate="al")


@ours.filter_custom_vjp
def without_rules(x: Any) -> Any:
    """A function whose rules are missing."""
    return x


@ours.filter_custom_jvp
def with_rule(x: Any, *, by: Any) -> Any:
    """A function with a rule by position."""
    return by * x


@with_rule.def_jvp
def _rule(primals: Any, tangents: Any, *, by: Any) -> Any:
    return by * primals[0], by * tangents[0]


TREE = {"a": jnp.ones(2), "b": None}
REFUSED = {
    "both": (lambda eqx: eqx.tree_at(lambda t: t["a"], TREE, 1, replace_fn=abs), "`tree_at` takes one of"),
    "neither": (lambda eqx: eqx.tree_at(lambda t: t["a"], TREE), "`tree_at` takes one of"),
    "no part": (lambda eqx: eqx.tree_at(lambda t: 3, TREE, 1), "`where` must return parts"),
    "a None": (lambda eqx: eqx.tree_at(lambda t: t["b"], TREE, 1), "`where` must return parts"),
    "other counts": (lambda eqx: eqx.tree_at(lambda t: (t["a"],), TREE, (1, 2)), "as many parts"),
    "mask": (lambda eqx: eqx.filter(TREE, "a"), "a mask consists"),
    "no rule": (lambda eqx: without_rules(jnp.ones(2)), "before its `def_fwd`"),
    "by keyword": (lambda eqx: jax.grad(lambda by: with_rule(1.0, by=by))(2.0), "keyword arguments have no"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_as_aerogels_own_errors(name: str) -> None:
    """An error has a code, a place and what to do; and it is an error of the kinds that Equinox raises there."""
    call, text = REFUSED[name]
    with pytest.raises(ours.CompatError, match=text) as caught:
        call(ours)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)
    labels = [line[2:8] for line in str(caught.value).splitlines()[1:]]
    assert labels[0] == "where "
    assert labels[-1] == "to fix"


@pytest.mark.parametrize(
    "x", [2.0, jnp.float32(2), np.float32(2), jnp.ones(2, jnp.bfloat16)], ids=lambda x: str(type(x))
)
def test_rules_see_the_tangents_of_numbers_too(x: Any) -> None:
    """Of a number of Python's that JAX differentiates by, as of an array: a rule that sees None gives zeros."""
    assert jax.grad(lambda x: with_rule(x, by=3.0).sum())(x).tolist() == (3 * jnp.ones_like(x)).tolist()


def test_arrays_are_shown_with_their_entries_when_asked() -> None:
    """`short_arrays=False`, as in Equinox."""
    tree = {"a": [jnp.arange(2), "x"], "b": None}
    assert ours.tree_pformat(tree) == equinox.tree_pformat(tree)
    assert ours.tree_pformat(tree, short_arrays=False) == equinox.tree_pformat(tree, short_arrays=False)


def test_files_of_equinox_are_read(tmp_path: Path) -> None:
    """What Equinox wrote is what comes back, dtypes included; numbers of plain trees too."""
    tree = {"a": jnp.ones(2, jnp.bfloat16), "b": np.arange(3), "c": 2.5, "d": True, "e": "name"}
    equinox.tree_serialise_leaves(tmp_path / "tree", tree)
    found = ours.tree_deserialise_leaves(tmp_path / "tree.eqx", tree)
    assert equinox.tree_equal(found, tree, typematch=True)
    ours.tree_serialise_leaves(tmp_path / "ours", tree)
    assert (tmp_path / "ours.eqx").read_bytes() == (tmp_path / "tree.eqx").read_bytes()
    with pytest.raises(RuntimeError, match=r"(?s)tree\['a'\].*bf16\[2\].*f32\[2\]"):
        ours.tree_deserialise_leaves(tmp_path / "tree.eqx", tree | {"a": jnp.ones(2)})


def test_a_file_of_layers_is_read(tmp_path: Path) -> None:
    """Of their arrays alone, which Equinox picks by `filter`; of the state as well."""

    def made(eqx: Any, key: int) -> Any:
        def make() -> Any:
            one, two, three = jax.random.split(jax.random.key(key), 3)
            norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
            attention = eqx.nn.MultiheadAttention(2, 4, dropout_p=0.1, key=one)
            spectral = eqx.nn.SpectralNorm(eqx.nn.Linear(4, 4, key=two), "weight", key=three)
            return eqx.nn.Sequential([attention, eqx.nn.AvgPool1d(2), eqx.nn.Dropout(), norm, spectral])

        return eqx.nn.make_with_state(make)()

    theirs = made(equinox, 1)
    equinox.tree_serialise_leaves(tmp_path / "both.eqx", equinox.filter(theirs, equinox.is_array))
    found = ours.tree_deserialise_leaves(tmp_path / "both.eqx", made(ours, 2))
    wanted = jax.tree.leaves(equinox.filter(theirs, equinox.is_array))
    assert len(wanted) == 13
    assert all(map(np.array_equal, jax.tree.leaves(found), wanted))


@pytest.mark.parametrize("donate", ["none", "all", "all-except-first"])
def test_what_is_compiled_ahead_takes_what_the_function_takes(donate: str) -> None:
    """Numbers and names too; its texts and analyses are those of JAX's stages."""

    def scaled(x: Any, y: Any, **kwargs: Any) -> Any:
        return 2 * x + y + kwargs["more"]

    lowered = ours.filter_jit(scaled, donate=donate).lower(jnp.array(3), 4, more=1)
    compiled = lowered.compile(compiler_options=None)
    assert int(compiled(jnp.array(3), 4, more=1)) == 11
    assert "scaled" in lowered.as_text()
    assert compiled.memory_analysis() is not None
