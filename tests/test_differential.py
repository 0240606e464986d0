"""Random programs give the same results with and without `optimize`.

`AEROGEL_DIFFERENTIAL=50000` draws that many programs (2,000 unless set), `AEROGEL_DIFFERENTIAL_START=2000` begins at
another seed, `AEROGEL_DIFFERENTIAL_SEED=1234` runs that one program and prints it. `AEROGEL_DIFFERENTIAL_FORMS=all`
takes every program in all forms that its seed asks for, and at free prices: seven times as long.
"""

import collections
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.judging.agree import compare, float64_reference
from drawing.corpus_floors import FLOORS
from drawing.free_prices import DIRECTIONS, free_prices
from drawing.miscompilers import RIGHT, WRONG, Miscompiler
from drawing.together import run_together
from strategies import Program, draw_program, programs

COUNT = int(os.environ.get("AEROGEL_DIFFERENTIAL", "2000"))
START = int(os.environ.get("AEROGEL_DIFFERENTIAL_START", "0"))
ONE = os.environ.get("AEROGEL_DIFFERENTIAL_SEED")
CHUNK = 50
ALL = ONE is not None or os.environ.get("AEROGEL_DIFFERENTIAL_FORMS") == "all"
# The dearer forms are taken of a sixth of the programs, by turns; which, the seed of the run decides.
TURN = None if ALL else int(os.environ.get("AEROGEL_SEED", "0")) % 6
SEEDS = [int(ONE)] if ONE else list(range(START, START + COUNT))
CHUNKS = [SEEDS[i : i + CHUNK] for i in range(0, len(SEEDS), CHUNK)]
# These run once more with prices under which everything moves.
FREE = CHUNKS if ALL else [seeds[:15] for seeds in CHUNKS[::40]]

Optimize = Callable[..., Callable[..., Any]]


class NoProgram(Exception):
    """The natural form itself fails: a fault of the generator."""


class FaultOfJax(Exception):
    """JAX fails on the natural form by an assertion of its own: there is nothing to compare with."""


# jax 0.10.2: `vmap` of a NumPy array into a function with a custom rule.
NOT_OURS = "non-canonical constant of type ndarray"


@contextmanager
def user_settings() -> Iterator[None]:
    """JAX as users have it: programs mix dtypes and ranks, whatever the test suite's own settings are."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- the forms in which a program is run -------------------------------------------------------------------------


def scalarised(f: Callable[..., Any]) -> Callable[..., Any]:
    """A float32 scalar of all inexact results of `f`."""

    def loss(*args: Any) -> Any:
        terms = [jnp.sum(jnp.real(jnp.sin(x)).astype("float32")) for x in jax.tree.leaves(f(*args)) if is_inexact(x)]
        return sum(terms, jnp.float32(0))

    return loss


def is_inexact(x: Any) -> bool:
    """A float or complex array or scalar."""
    return jnp.issubdtype(jnp.result_type(x) if not hasattr(x, "dtype") else x.dtype, jnp.inexact)


def is_real(x: Any) -> bool:
    """A float array."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def gradient(program: Program) -> tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]] | None:
    """`inner`, the transformation around it, and arguments: the gradient by every float array among the arguments."""
    args = program.args()
    leaves, tree = jax.tree.flatten(args)
    floats = tuple(i for i, x in enumerate(leaves) if is_real(x))
    if not floats or not program.reverse:
        return None
    f = program.function()

    def flat(*leaves: Any) -> Any:
        return scalarised(f)(*jax.tree.unflatten(tree, leaves))

    return flat, lambda g: jax.grad(g, argnums=floats), tuple(leaves)


def batched(program: Program) -> tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]:
    """The program vmapped over two versions of its arrays; Python scalars are shared."""

    def two(x: Any) -> Any:
        if isinstance(x, (bool, int, float)):
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.split(x, 2)
        with np.errstate(invalid="ignore"):  # infinities of complex numbers
            return jnp.stack([x, x * 0.5 if is_inexact(x) else x[::-1] if x.ndim else x]).astype(x.dtype)

    args = program.args()
    axes = jax.tree.map(lambda x: None if isinstance(x, (bool, int, float)) else 0, args)
    if not jax.tree.leaves(axes):
        axes = 0
        return program.function(), lambda f: f, args
    return program.function(), lambda f: jax.vmap(f, in_axes=axes), jax.tree.map(two, args)


# --- the judgement -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A program in one form as it stands and optimised, traced, and what it is run at."""

    name: str
    natural: Any
    optimised: Any
    args: list[Any]
    exactness: Exactness

    @property
    def fault(self) -> str:
        """What differs before anything is run: the structure of the results, or which of them are weakly typed."""
        got, want = (jax.tree.structure(form.out_info) for form in (self.optimised, self.natural))
        if got != want:
            return f"the structure is {got}, wanted {want}"
        got, want = weak_types(self.optimised), weak_types(self.natural)
        return f"weakly typed are {got}, wanted {want}" if got != want else ""

    def reference(self) -> Any:
        """The results in float64."""
        return float64_reference(self.natural.jaxpr.jaxpr, self.natural.jaxpr.consts, self.args)


def pairs_of(program: Program, optimize: Optimize = ag.optimize, turn: int | None = None) -> list[Pair]:
    """The program in all forms that its seed asks for.

    Every program runs with numerics "fast"; every 5th also "strict", every 4th also under `grad`, every 7th also
    under `vmap` (the transformation outside or inside of `optimize`, in turns). With a `turn`, 0 to 5, five of six
    programs are only run "fast".
    """
    seed, args = program.seed, program.args()
    found = [pair("fast", program.function(), lambda f: f, args, optimize, "fast", True)]
    if turn is not None and seed // 20 % 6 != turn:
        return found
    if seed % 5 == 0:
        found.append(pair("strict", program.function(), lambda f: f, args, optimize, "strict", True))
    form = gradient(program) if seed % 4 == 0 else None
    if form is not None:
        found.append(pair("gradient", *form, optimize, "fast", seed % 8 == 0))
    if seed % 7 == 0:
        found.append(pair("vmapped", *batched(program), optimize, "fast", seed % 14 == 0))
    return found


def pair(
    name: str,
    f: Callable[..., Any],
    transform: Callable[[Any], Any],
    args: Sequence[Any],
    optimize: Optimize,
    numerics: str,
    outside: bool,
) -> Pair:
    """One form, traced with and without `optimize`."""
    # JAX's own checks look at each inner program again at every level; here each program is checked once, whole.
    with user_settings(), jax.enable_checks(False):
        whole = transform(f)
        try:
            natural = jax.jit(whole).trace(*args)
        except (TypeError, ValueError, IndexError, NotImplementedError, AttributeError, ZeroDivisionError) as error:
            raise NoProgram(f"{name}: {type(error).__name__}: {error}") from error
        except AssertionError as error:
            if NOT_OURS not in str(error):
                raise
            raise FaultOfJax(name) from error
        form = optimize(whole, numerics=numerics) if outside else transform(optimize(f, numerics=numerics))
        optimised = jax.jit(form).trace(*args)
        _jax.check_jaxpr(optimised.jaxpr.jaxpr)
    exactness = Exactness.NO_WORSE if numerics == "strict" else Exactness.REASSOCIATES
    return Pair(name, natural, optimised, jax.tree.leaves(args), exactness)


def differences(pairs: Sequence[Pair]) -> list[list[str]]:
    """What differs between the two of each pair, each line with the form's name in front; empty if nothing."""
    found = [[f"{pair.name}: {pair.fault}"] if pair.fault else [] for pair in pairs]
    with user_settings(), jax.enable_checks(False):
        # Three of four programs are too small for anything to fire.
        same = [same_program(pair.natural.jaxpr, pair.optimised.jaxpr) for pair in pairs]
        run = [i for i, lines in enumerate(found) if not lines and not same[i]]
        args = [pairs[i].args for i in run]
        want = run_together([pairs[i].natural.jaxpr for i in run], args)
        got = run_together([pairs[i].optimised.jaxpr for i in run], args)
        for i, *results in zip(run, got, want, strict=True):
            found[i] = [f"{pairs[i].name}: {d}" for d in compared(pairs[i], *results)]
    return found


def compared(pair: Pair, got: list[Any], want: list[Any]) -> list[Any]:
    """Where the results differ by more than the form may.

    Without a reference NO_WORSE is one ulp of the natural result. REASSOCIATES allows two of float64's, which is more
    unless the natural result is off by half of itself: then the dear reference decides nothing.
    """
    if pair.exactness is Exactness.REASSOCIATES and not compare(got, want, exactness=Exactness.NO_WORSE):
        return []
    return list(compare(got, want, pair.reference, exactness=pair.exactness))


def weak_types(traced: Any) -> list[bool]:
    """Which results are weakly typed: the text does not say."""
    return [bool(getattr(x, "weak_type", False)) for x in jax.tree.leaves(traced.out_info)]


def same_program(a: Any, b: Any) -> bool:
    """Whether two closed jaxprs have the same text, with no digit left out, and the same arrays in it.

    It is not the optimiser's own comparison (`compiler.same`), whose faults it must not share.
    """
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return all_consts(a) == all_consts(b) and str(a) == str(b)


def all_consts(closed: Any) -> list[Any]:
    """The bytes of the arrays of a program and of its inner programs, in order: the text only names them."""
    found: list[Any] = [plain_bytes(x) for x in getattr(closed, "consts", ())]
    for eqn in closed.eqns:
        for param in eqn.params.values():
            for inner in param if isinstance(param, tuple) else (param,):
                found += all_consts(inner) if hasattr(inner, "eqns") else []
    return found


def plain_bytes(x: Any) -> bytes:
    """An array's bits; of keys, their data."""
    if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x).tobytes()


# --- the tests ---------------------------------------------------------------------------------------------------


@pytest.mark.while_there_is_time("differential")
@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_random_programs_agree(seeds: list[int]) -> None:
    """An optimised program has the structure, types, weak types and (to its exactness) numbers of the natural one."""
    pairs: list[Pair] = []
    texts: list[str] = []
    faults: list[str] = []
    for seed in seeds:
        program = draw_program(seed)
        text = f"{program}\n\nAEROGEL_DIFFERENTIAL_SEED={seed} repeats it"
        if ONE:
            sys.stdout.write(f"{program}\n")
        try:
            found = pairs_of(program, turn=TURN)
        except NoProgram as error:
            faults.append(f"program {seed}: {error}")
            continue
        except FaultOfJax:
            continue
        except Exception as error:
            error.add_note(text)
            raise
        pairs += found
        texts += [text] * len(found)
    lines = zip(texts, differences(pairs), strict=True)
    failures = ["\n  ".join([text, *found]) for text, found in lines if found]
    jax.clear_caches()  # programs are not used twice, and their code fills the memory
    assert not failures, "\n\n".join([f"{len(failures)} of {len(pairs)} forms differ", *failures])
    assert len(faults) <= len(seeds) // 50, "the generator draws programs that JAX refuses:\n" + "\n".join(faults)


@pytest.mark.parametrize("seeds", FREE, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_random_programs_agree_whatever_moves(
    seeds: list[int], direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds when the cost model lets everything move that may: small programs then meet every pass."""
    free_prices(direction, monkeypatch.setattr)
    test_random_programs_agree(seeds)


def test_more_moves_at_free_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same 40 programs: more fires into loops than as ever, and more still out of them and in again."""

    def fired() -> int:
        reports: list[Any] = []
        for seed in range(40):
            program = draw_program(seed)
            with user_settings():
                form = ag.optimize(program.function(), on_report=reports.append)
                jax.jit(form).trace(*program.args())
        return sum(len(report.fired) for report in reports)

    counts = [fired()]
    for direction in DIRECTIONS:
        free_prices(direction, monkeypatch.setattr)
        counts.append(fired())
    assert counts[0] < counts[1] < counts[2], counts


@settings(max_examples=10)
@given(program=programs())
def test_shrinking_programs_agree(program: Program) -> None:
    """The same holds for programs that hypothesis draws, which shrink when it does not."""
    with suppress(NoProgram):
        pairs = pairs_of(program)
        assert not any(differences(pairs)), str(program)


def test_the_corpus_holds_what_it_should() -> None:
    """Of 500 programs at least so many hold each feature: an absent feature would make every test above weaker."""
    counts = collections.Counter(feature for seed in range(500) for feature in draw_program(seed).features)
    missing = {f: (counts[f], floor) for f, floor in FLOORS.items() if counts[f] < floor}
    assert not missing, f"feature: (found, floor) {missing}"


def test_features_are_in_the_programs_and_not_only_in_their_labels() -> None:
    """The labels of 40 programs are true: the primitives that they name stand in the traced program."""
    primitives = {"scan": "scan", "cond": "cond", "switch": "cond", "checkpoint": "remat2", "random": "random_bits",
                  "custom_jvp": "custom_jvp_call", "inner_jit": "jit"}  # fmt: skip
    seen: collections.Counter[str] = collections.Counter()
    labelled: collections.Counter[str] = collections.Counter()
    for seed in range(40):
        program = draw_program(seed)
        with user_settings():
            names = primitive_names(jax.make_jaxpr(program.function())(*program.args()).jaxpr)
        for feature, primitive in primitives.items():
            labelled[feature] += feature in program.features
            seen[feature] += feature in program.features and primitive in names
    for feature in primitives:
        # What a derivative or dead code removes is labelled too.
        assert seen[feature] >= 0.6 * labelled[feature] > 0, (feature, seen[feature], labelled[feature])


def primitive_names(jaxpr: Any) -> set[str]:
    """Names of all primitives, also in inner programs."""
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    for eqn in jaxpr.eqns:
        for inner in _jax.jaxprs_in_params(eqn.params):
            names |= primitive_names(inner)
    return names


def test_a_seed_is_one_program() -> None:
    """The same seed gives the same text in another process, whatever PYTHONHASHSEED is."""
    code = "from strategies import draw_program as d; print(hash('a')); print(*map(d, range(30)), sep='\\n')"
    texts = []
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        texts.append(run.stdout.split("\n", 1))
    assert texts[0][0] != texts[1][0], "the hash seeds did not differ"
    assert texts[0][1] == texts[1][1] == "\n".join(map(str, map(draw_program, range(30)))) + "\n"


# --- is the judge awake? -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimize", WRONG, ids=lambda m: m.name)
def test_the_judge_sees_a_wrong_optimiser(optimize: Miscompiler) -> None:
    """Each wrong optimiser is caught twice within the first 60 programs that can show its fault (most within five)."""
    under_grad = "custom_jvp" in optimize.features
    caught, tried = 0, 0
    for seed in range(3000):
        if not optimize.features <= draw_program(seed).features:
            continue
        if seed % 8 != 4 if under_grad else 0 in (seed % 4, seed % 5, seed % 7):
            continue  # one form of the program is enough here
        tried += 1
        caught += any(differences(pairs_of(draw_program(seed), optimize)))
        if caught == 2:
            return
        assert tried < 60, f"{optimize.name} is caught on {caught} of {tried} programs"
    raise AssertionError(f"{tried} programs with {set(optimize.features)}")


@pytest.mark.parametrize("optimize", RIGHT, ids=lambda m: m.name)
def test_the_judge_accepts_a_right_optimiser(optimize: Miscompiler) -> None:
    """What only inlines, and what only adds up in another order, is accepted on every program."""
    tried = 0
    for seed in range(36):
        program = draw_program(seed)
        if optimize.features <= program.features:
            tried += 1
            # Another order of summation is no promise of "strict".
            pairs = [pair for pair in pairs_of(program, optimize) if pair.exactness is not Exactness.NO_WORSE]
            found = [line for lines in differences(pairs) for line in lines]
            assert found == [], f"{program}\n{found}"
    assert tried >= 5
    jax.clear_caches()


def test_the_optimiser_has_work_to_do() -> None:
    """In every eighth program at least something fires: otherwise their agreement would say little."""
    fired = 0
    for seed in range(80):
        program, reports = draw_program(seed), []
        with user_settings():
            form = ag.optimize(program.function(), on_report=reports.append)
            jax.jit(form).trace(*program.args())
        fired += any(report.fired for report in reports)
    assert fired >= 10
