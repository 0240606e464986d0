"""A loop is its step, batch by batch, however many steps a call does and however batches arrive."""

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aerogel as ag
from aerogel import nn


def step(state: Any, batch: Any) -> Any:
    """A step whose result tells which batches it saw, in which order."""
    return {**state, "seen": state["seen"] * 3 + batch["x"].sum(), "key": jax.random.fold_in(state["key"], 1)}, (
        state["seen"],
        batch["name"],
    )


def first_state() -> Any:
    """A state with an array, a key and a function in it."""
    return {"seen": jnp.float32(0), "key": jax.random.key(0), "how": jnp.tanh}


def batches_of(sizes: list[int]) -> Iterator[Any]:
    """Batches of these sizes, each of its own number."""
    for i, size in enumerate(sizes):
        yield {"x": np.full(size, i + 1, np.float32), "name": "a"}


@settings(max_examples=8)
@given(st.lists(st.sampled_from([2, 2, 2, 3]), max_size=8), st.sampled_from([2, 3]))
def test_steps_per_call_changes_nothing(sizes: list[int], count: int) -> None:
    """The same states and the same results in the same order, with remainders and batches of several shapes."""
    wanted, outs = first_state(), []
    for batch in batches_of(sizes):
        wanted, (seen, _) = step(wanted, batch)
        outs.append(float(seen))
    running = ag.loop(step, first_state(), batches_of(sizes), steps_per_call=count, first_step=5)
    found = [(np.asarray(seen), name) for seen, name in running]
    assert [x for seen, _ in found for x in seen.tolist()] == outs
    assert all(name == "a" for _, name in found)
    assert running.step == 5 + len(sizes)
    assert float(running.state["seen"]) == float(wanted["seen"])
    assert bool((running.state["key"] == wanted["key"]).all())
    assert len(found) == len(sizes) or any(len(seen) == count for seen, _ in found)


def training(batches: Any, **options: Any) -> Any:
    """A small model in training: the state after the last batch."""
    model = nn.MLP(3, 1, 8, 1, key=jax.random.key(0))
    optimizer = ag.Optimizer(optax.adam(1e-2)).init(model)

    def train(state: Any, batch: Any) -> Any:
        model, optimizer = state
        loss, *state = optimizer.step(lambda model, x: jnp.square(model(x) - 1).mean())(model, batch)
        return tuple(state), loss

    running = ag.loop(train, (model, optimizer), batches, **options)
    return running, [float(x) for losses in running for x in losses]


def test_training_in_one_call() -> None:
    """Losses and parameters of a model in training are those of single steps, and go down."""
    batches = list(np.random.default_rng(0).normal(size=(7, 4, 3)).astype(np.float32))
    one, losses = training(batches)
    many, others = training(ag.prefetch(batches), steps_per_call=3)
    np.testing.assert_allclose(losses, others, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(many.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert len(losses) == 7
    assert losses[-1] < losses[0]


def test_programs_are_few() -> None:
    """Two programs, whatever the number of batches and of loops: one of all steps, one of single ones."""
    traces = []

    def counted(state: Any, batch: Any) -> Any:
        traces.append(1)
        return state + batch, None

    running = ag.loop(counted, jnp.float32(0), (np.float32(i) for i in range(11)), steps_per_call=4)
    assert len(list(running)) == 2 + 3
    assert float(running.state) == 55
    several = len(traces)
    for _ in ag.loop(counted, jnp.float32(0), map(np.float32, range(40)), steps_per_call=4):
        pass
    assert len(traces) == several


def test_the_state_is_donated() -> None:
    """The next state takes the memory of the last one, unless it is told not to."""
    for donate in (True, False):
        state = jnp.ones(3)
        next(ag.loop(lambda state, x: (state + x, None), state, [np.float32(1)], donate=donate))
        assert state.is_deleted() == donate


def test_an_error_names_the_batch() -> None:
    """An error in a step says which step it was, and what the batch looked like."""

    def wrong(state: Any, batch: Any) -> Any:
        return state + batch["x"] @ jnp.ones(4), None

    good, bad = {"x": np.ones((2, 4), np.float32)}, {"x": np.ones((2, 5), np.float32)}
    running = ag.loop(wrong, jnp.zeros(2), [good, good, bad], steps_per_call=2)
    next(running)
    with pytest.raises(TypeError) as caught:
        next(running)
    assert caught.value.__notes__[-1:] == ["in step 2 of `ag.loop`, with the batch batch['x']: f32[2,5]"]
    assert running.step == 2
    assert running.state.tolist() == [8, 8]


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_step_returns_is_checked(count: int) -> None:
    """A step that forgets the result, or swaps it with the state, is told so at once, however many go in one call."""
    state = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    batches = [np.float32(1)] * 2
    with pytest.raises(ag.UsageError, match="next state and a result"):
        next(ag.loop(lambda state, x: None, state, batches, steps_per_call=count, donate=False))  # type: ignore[arg-type]
    with pytest.raises(ag.CarryError, match="`loop`"):
        next(ag.loop(lambda state, x: (x, state), state, batches, steps_per_call=count, donate=False))


def test_batches_may_hold_nothing() -> None:
    """A step that makes its batch from its state is told how many steps there are by the number of batches."""
    running = ag.loop(lambda n, _: (n + 1, n), jnp.array(0), [None] * 5, steps_per_call=2)
    assert [out.tolist() for out in running] == [[0, 1], [2, 3], [4]]


def failing() -> Iterator[Any]:
    """Two batches, then an error."""
    yield np.float32(1)
    yield np.float32(2)
    raise ZeroDivisionError("in the source")


def test_prefetch_gives_the_same() -> None:
    """The same batches in the same order, on the device; then the error of the source, then nothing."""
    batches = [{"x": np.full(3, i), "name": "n", "key": jax.random.key(i)} for i in range(5)]
    found = list(ag.prefetch(batches, size=3, sharding=jax.devices()[1]))
    assert [int(batch["x"][0]) for batch in found] == list(range(5))
    assert all(batch["x"].devices() == {jax.devices()[1]} and batch["name"] == "n" for batch in found)
    source = ag.prefetch(failing())
    assert [float(next(source)), float(next(source))] == [1, 2]
    with pytest.raises(ZeroDivisionError, match="in the source"):
        next(source)
    assert list(source) == []


def test_prefetch_reads_so_far_and_no_further() -> None:
    """At most `size` batches wait; positions are those of what came out."""
    source = Counting()
    reading = ag.prefetch(source, size=3)
    assert source.reached(3)
    for taken in range(4):
        assert int(next(reading)) == taken
        assert reading.get_state() == {"next": taken + 1}
        assert source.reached(taken + 4)
    assert source.read == 7


class Counting:
    """An endless iterator with a position, as those of `grain`, that says how much was read of it."""

    def __init__(self) -> None:
        self.read = 0
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self.changed:
            self.read += 1
            self.changed.notify_all()
        return np.int32(self.read - 1)

    def get_state(self) -> Any:
        return {"next": self.read}

    def reached(self, count: int) -> bool:
        """Whether so many are read, within a while."""
        with self.changed:
            return self.changed.wait_for(lambda: self.read >= count, timeout=30)


def test_a_loop_knows_its_position() -> None:
    """It is that behind the last step, however many batches were read ahead."""
    batches = ag.prefetch(Counting(), size=4)
    running = ag.loop(lambda total, x: (total + x, None), jnp.int32(0), batches, steps_per_call=2)
    next(running)
    next(running)
    assert (running.step, running.position, int(running.state)) == (4, {"next": 4}, 6)
    batches.close()


def test_whoever_stops_early_leaves_no_thread() -> None:
    """The thread ends when its iterator is closed or forgotten, also while it waits for a place."""
    for forget in (True, False):
        source = Counting()
        reading = ag.prefetch(source, size=1)
        thread = next(t for t in threading.enumerate() if t.name == "prefetch")
        assert source.reached(1)
        if not forget:
            reading.close()
            assert list(reading) == []
        gone = weakref.ref(reading)
        del reading
        gc.collect()
        assert gone() is None
        thread.join(timeout=30)
        assert not thread.is_alive()
        assert source.read <= 2


def test_arguments_are_checked() -> None:
    """Neither a loop of no steps nor a queue of no places waits for ever."""
    with pytest.raises(ag.UsageError, match="steps_per_call"):
        ag.loop(step, first_state(), [], steps_per_call=0)
    with pytest.raises(ag.UsageError, match="size"):
        ag.prefetch([], size=0)
    assert list(itertools.islice(ag.loop(step, first_state(), []), 1)) == []
