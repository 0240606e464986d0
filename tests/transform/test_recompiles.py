"""A second trace is explained: the path of what changed, before and after."""

import logging
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag


class Layer(ag.Module):
    weight: Any
    scale: float = 1.0
    activation: Any = jnp.sin


class Model(ag.Module):
    layers: list[Layer]


def model(*scales: float, width: int = 2, activation: Any = jnp.sin) -> Model:
    """Layers with these scales."""
    return Model([Layer(jnp.ones(width), scale, activation) for scale in scales])


def first(model: Any, batch: Any, mode: str = "train", **more: Any) -> Any:
    """A function with every kind of argument."""
    return model.layers[0].weight.sum() + jnp.asarray(batch["x"]).sum()


BATCH = {"x": np.ones((8, 2), np.float32)}


@pytest.mark.parametrize(
    ("args", "kwargs", "lines"),
    [
        ((model(1.0), {"x": np.ones((7, 2), np.float32)}), {}, ["batch['x']  f32[8,2] -> f32[7,2]"]),
        ((model(1.0), {"x": np.ones((8, 2), np.float16)}), {}, ["batch['x']  f32[8,2] -> f16[8,2]"]),
        ((model(2.0), BATCH), {}, ["model.layers[0].scale  1.0 -> 2.0"]),
        ((model(1.0, activation=jax.nn.relu), BATCH), {}, ["model.layers[0].activation  sin -> relu"]),
        ((model(1.0, width=3), BATCH), {}, ["model.layers[0].weight  f32[2] -> f32[3]"]),
        (
            (ag.freeze(model(1.0), "layers[0].weight"), BATCH),
            {},
            ["model.layers[0]  Layer -> Layer with frozen weight"],
        ),
        ((model(1.0), BATCH, "eval"), {}, ["mode  nothing -> 'eval'"]),
        ((model(1.0), {**BATCH, "y": 1}), {}, ["batch['y']  nothing -> i32[] (weakly typed)"]),
        ((model(1.0), BATCH), {"flag": "on"}, ["flag  nothing -> 'on'"]),
        ((model(1.0), {"x": 1.0}), {}, ["batch['x']  f32[8,2] -> f32[] (weakly typed)"]),
        (
            (model(1.0), {"x": [1.0]}),
            {},
            ["batch['x']     f32[8,2] -> list", "batch['x'][0]  nothing -> f32[] (weakly typed)"],
        ),
    ],
    ids=[
        "shape",
        "dtype",
        "static field",
        "function",
        "leaf",
        "frozen",
        "string",
        "key",
        "keyword",
        "weak",
        "structure",
    ],
)
def test_what_changed_is_named(args: Any, kwargs: Any, lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """One line for each position that changed, and none for the others."""
    f = ag.jit(_copy(), explain_recompiles=True)
    f(model(1.0), BATCH)
    assert not caplog.records
    f(*args, **kwargs)
    (record,) = caplog.records
    assert record.name == "aerogel.recompiles"
    assert record.levelno == logging.WARNING
    head, *rest = record.getMessage().splitlines()
    assert head == "`first` is traced for the 2nd time; what changed:"
    assert [line.strip() for line in rest] == lines


def _copy() -> Any:
    def first_copy(model: Any, batch: Any, mode: str = "train", **more: Any) -> Any:
        return first(model, batch, mode, **more)

    first_copy.__name__ = "first"
    return first_copy


def test_a_mesh_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """An array that was on no mesh and then is on one is another type, as JAX sees it."""
    f = ag.jit(_copy(), explain_recompiles=True)
    f(model(1.0), BATCH)
    mesh = jax.make_mesh((2, 4), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    f(model(1.0), jax.device_put(BATCH, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))))
    assert caplog.messages[0].splitlines()[1:] == ["  batch['x']  f32[8,2] -> f32[8,2] on a mesh of data=2, model=4"]


def test_an_argument_that_is_named_once_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """By position and by name are two structures to JAX, though no value differs."""
    f = ag.jit(_copy(), explain_recompiles=True)
    f(model(1.0), BATCH)
    f(model(1.0), batch=BATCH)
    f(model=model(1.0), batch=BATCH)
    assert [m.splitlines()[1:] for m in caplog.messages] == [
        ["  batch  by position -> by name"],
        ["  model  by position -> by name"],
    ]


def test_traces_are_counted_in_words(caplog: pytest.LogCaptureFixture) -> None:
    """As English counts: 11th, 21st, 22nd."""
    f = ag.jit(lambda x: x, explain_recompiles=True)
    for size in range(24):
        f(np.ones(size, np.float32))
    said = [message.split(" time;")[0].split()[-1] for message in caplog.messages]
    assert said[:2] == ["2nd", "3rd"]
    assert said[9:12] == ["11th", "12th", "13th"]
    assert said[18:] == ["20th", "21st", "22nd", "23rd", "24th"]


def test_the_nearest_earlier_trace_is_compared_with(caplog: pytest.LogCaptureFixture) -> None:
    """Not the last one: the third trace is told from the first, which it is nearer to."""
    f = ag.jit(_copy(), explain_recompiles=True)
    f(model(1.0), BATCH)
    f(model(2.0, 3.0), {"x": 1.0})
    f(model(1.0), BATCH, "eval")
    assert "since the 1st time" in caplog.records[-1].getMessage()
    assert len(caplog.records[-1].getMessage().splitlines()) == 2


def test_settings_and_cleared_caches(caplog: pytest.LogCaptureFixture) -> None:
    """A trace that no argument asked for says so."""
    f = ag.jit(_copy(), explain_recompiles=True)
    f(model(1.0), BATCH)
    with jax.default_matmul_precision("float32"):
        f(model(1.0), BATCH)
    assert "a setting of JAX" in caplog.text
    f.clear_cache()
    f(model(1.0), BATCH)
    assert "is not kept" in caplog.records[-1].getMessage()


def test_the_log_level_explains_all(caplog: pytest.LogCaptureFixture) -> None:
    """Without the option nothing is said, unless the logger's level is INFO."""
    f = ag.jit(_copy())
    with caplog.at_level(logging.WARNING, "aerogel.recompiles"):  # whatever others made of the root logger's level
        f(model(1.0), BATCH), f(model(2.0), BATCH)
    assert not caplog.records
    with caplog.at_level(logging.INFO, "aerogel.recompiles"):
        f(model(3.0), BATCH)
    assert "model.layers[0].scale" in caplog.text


def test_what_a_tie_computes_is_not_computed_for_the_record() -> None:
    """An optimiser may put lists and marks in the place of arrays, which the tie's function does not take."""
    tied = ag.tie(model(1.0, 2.0), "layers[1].weight", "layers[0].weight", via=jnp.transpose)
    lists = jax.tree.map(lambda x: [x, x], tied)
    out = ag.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree))(lists)
    assert jax.tree.structure(out) == jax.tree.structure(lists)
    assert ag.ties(out) == ag.ties(tied)


@pytest.mark.parametrize("n", [-1, 1.0, True, jnp.sin])
def test_assert_max_traces_takes_a_number(n: Any) -> None:
    """What is no number of traces is refused before the block, with an example of what is."""
    with pytest.raises(ag.UsageError, match=r"with ag\.assert_max_traces"), ag.assert_max_traces(n):
        pass


def test_assert_max_traces() -> None:
    """Counts each function's traces in the block, not those before nor in other threads; decorates; nests."""
    f, g = ag.jit(_copy()), ag.jit(_copy())
    with ag.assert_max_traces(1):
        f(model(1.0), BATCH), g(model(1.0), BATCH), f(model(1.0), BATCH)
    with ag.assert_max_traces(0):
        f(model(1.0), BATCH)
    with pytest.raises(ag.TooManyTraces) as error, ag.assert_max_traces(5), ag.assert_max_traces(0):
        f(model(2.0), BATCH)
    assert (error.value.function, error.value.traces, error.value.allowed) == ("first", 1, 0)
    assert error.value.changes == "model.layers[0].scale  1.0 -> 2.0"

    @ag.assert_max_traces(1)
    def loop() -> None:
        for scale in (4.0, 5.0):
            f(model(scale), BATCH)

    with pytest.raises(ag.TooManyTraces):
        loop()
    loop()  # one of the two is known by now, and each call counts anew
    with ag.assert_max_traces(0):
        thread = threading.Thread(target=lambda: f(model(9.0), BATCH))
        thread.start()
        thread.join()
    f(model(7.0), BATCH)
