"""An optimised program moves no more between devices than the program that it stands for, and leaves results in place.

Counted in what XLA compiled: every kind of collective, as often as it runs, and the bytes of all of them together.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import aerogel as ag
from aerogel import nn

from ._collectives import collectives

KEY = jax.random.key(0)
ALL = ("data", "model")
Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], dict[str, tuple[Any, ...]]]


def mesh(kind: Any = AxisType.Auto) -> Mesh:
    """Two by four devices."""
    return jax.make_mesh((2, 4), ALL, axis_types=(kind, kind))


def normal(*shape: int) -> jax.Array:
    """Random numbers."""
    return jax.random.normal(KEY, shape)


def stepped(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent: new parameters, and the loss."""

    def step(params: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def mlp_loss(params: Any, x: Any, y: Any) -> Any:
    """Mean square error of layers, one after the other."""
    for weight, bias in params:
        x = jnp.tanh(x @ weight + bias)
    return jnp.mean((x - y) ** 2)


def layers_loss(params: Any, x: Any, y: Any) -> Any:
    """The same, by a scan over stacked layers."""
    out, _ = lax.scan(lambda h, layer: (jnp.tanh(h @ layer[0] + layer[1]), None), x, params)
    return jnp.mean((out - y) ** 2)


def states_and_inputs(h: Any, xs: Any, weight: Any) -> Any:
    """A recurrence whose states are compared with its inputs: the way back reads them twice."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ weight + x)
        return h, h

    h, states = lax.scan(step, h, xs)
    return jnp.mean(states * xs) + jnp.sum(h)


def block_loss(block: Any, x: Any) -> Any:
    """Of a layer of ours."""
    return jnp.mean(block(x) ** 2)


def rnn_states(params: Any, xs: Any) -> Any:
    """Hidden states [time, batch, size]."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(x @ params[0] + h @ params[1])
        return h, h

    return lax.scan(step, jnp.zeros((xs.shape[1], params[1].shape[0])), xs)[1]


def rnn_loss(params: Any, xs: Any, ys: Any) -> Any:
    """A loss that is reduced over time."""
    return jnp.mean((rnn_states(params, xs) @ params[2] - ys) ** 2)


def rnn_last(params: Any, xs: Any, ys: Any) -> Any:
    """A loss of the last state."""
    return jnp.mean((rnn_states(params, xs)[-1] @ params[2] - ys[-1]) ** 2)


def cross_entropy(params: Any, tokens: Any, labels: Any) -> Any:
    """Of a table and a head for a vocabulary."""
    table, head = params
    logits = jax.nn.log_softmax(table[tokens] @ head)
    return -jnp.mean(jnp.take_along_axis(logits, labels[..., None], -1))


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention as it stands in the paper."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(seen, scores, -1e9), -1), v)


def pairs(xs: Any, ys: Any, v: Any) -> Any:
    """A kernel-vector product, which is streamed on one device."""
    return jnp.exp(-((xs[:, None] - ys[None]) ** 2).sum(-1)) @ v


def accumulated(weight: Any, x: Any) -> Any:
    """Gradients of parts of a batch, added up."""
    parts = x.reshape(4, -1, x.shape[1])
    step = jax.grad(lambda w, part: (jnp.tanh(part @ w) ** 2).mean())
    return lax.scan(lambda total, part: (total + step(weight, part), None), jnp.zeros_like(weight), parts)[0]


def stacked(x: Any) -> Any:
    """Reductions of what a loop stacks."""
    last, ys = lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=32)
    return last, ys.mean(0), (ys**2).sum(), jnp.max(ys, (0, 2))


def against_targets(x: Any, targets: Any) -> Any:
    """A reduction of what a loop stacks, with what it does not read."""
    return ((lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=32)[1] - targets) ** 2).sum()


ROWS, COLUMNS, BOTH = P("data"), P(None, "model"), P("data", "model")
IMAGE = {"rows": (ROWS,), "columns": (COLUMNS,), "both": (BOTH,)}
RNN = {
    "data": ((P(), P(), P()), P(None, ALL), P(None, ALL)),
    "tensor": ((P(None, "model"), P(None, "model"), P("model")), P(None, "data"), P(None, "data")),
    "fully": ((P(ALL), P(ALL), P(ALL)), P(None, ALL), P(None, ALL)),
}


def on_image(f: Callable[..., Any]) -> Case:
    """A function of one matrix."""
    return f, lambda: (normal(512, 1024),), IMAGE


def rnn_arguments() -> tuple[Any, ...]:
    """Parameters, inputs and targets."""
    return (normal(64, 256), normal(256, 256), normal(256, 64)), normal(64, 64, 64), normal(64, 64, 64)


PROGRAMS: dict[str, Case] = {
    "mlp": (
        stepped(mlp_loss),
        lambda: ([(normal(256, 256), normal(256))] * 4, normal(128, 256), normal(128, 256)),
        {
            "data": ([(P(), P())] * 4, P(ALL), P(ALL)),
            "tensor": ([(COLUMNS, P("model")), (P("model"), P())] * 2, ROWS, ROWS),
            "fully": ([(P(ALL), P(ALL))] * 4, P(ALL), P(ALL)),
            "tensor and fully": ([(BOTH, P("model")), (P("model", "data"), P("data"))] * 2, ROWS, ROWS),
        },
    ),
    "layers": (
        stepped(layers_loss),
        lambda: ((normal(4, 256, 256), normal(4, 256)), normal(128, 256), normal(128, 256)),
        {
            "data": ((P(), P()), P(ALL), P(ALL)),
            "tensor": ((P(None, None, "model"), COLUMNS), ROWS, ROWS),
            "fully": ((P(None, ALL), P(None, ALL)), P(ALL), P(ALL)),
        },
    ),
    "rnn": (stepped(rnn_loss), rnn_arguments, RNN),
    "rnn, last": (stepped(rnn_last), rnn_arguments, RNN),
    "cross-entropy": (
        stepped(cross_entropy),
        lambda: ((normal(2048, 64), normal(64, 2048)), *[jnp.arange(512).reshape(16, 32)] * 2),
        {
            "data": ((P(), P()), P(ALL), P(ALL)),
            "vocabulary": ((P("model"), COLUMNS), ROWS, ROWS),
            "fully": ((P(ALL), P(ALL)), P(ALL), P(ALL)),
        },
    ),
    "attention": (
        jax.grad(lambda *qkv: (attention(*qkv) ** 2).sum(), (0, 1, 2)),
        lambda: (normal(8, 256, 8, 16),) * 3,
        {
            "batch": (P("data"),) * 3,
            "heads": (P("data", None, "model"),) * 3,
            "time": (P(None, ALL), P(), P()),
            "all times": (P("data", "model"),) * 3,
        },
    ),
    "pairs": (
        jax.value_and_grad(lambda *args: pairs(*args).sum(), (0, 1, 2)),
        lambda: (normal(2048, 3), normal(2048, 3), normal(2048)),
        {"rows": (ROWS, P(), P()), "columns": (P(), ROWS, ROWS), "both": (ROWS, P("model"), P("model"))},
    ),
    "products": (
        lambda a, b, x: (jnp.diag(a @ b @ a.T) * x, (a @ b) @ x, jnp.trace(a @ b)),
        lambda: (normal(512, 512), normal(512, 512), normal(512)),
        {"rows": (ROWS, COLUMNS, P()), "columns": (P(None, "data"), P("model"), ROWS)},
    ),
    "gradients added up": (
        jax.grad(lambda *args: accumulated(*args).sum(), (0, 1)),
        lambda: (normal(256, 64), normal(512, 256)),
        {"rows": (P(), ROWS), "both": (P("model"), BOTH)},
    ),
    "stacked": (stacked, lambda: (normal(64, 1024),), {"rows": (ROWS,), "both": (BOTH,)}),
    "stacked, against targets": (
        against_targets,
        lambda: (normal(64, 1024), normal(32, 64, 1024)),
        {"over time": (ROWS, P("model", "data")), "rows": (ROWS, P(None, "data"))},
    ),
    "sort": on_image(lambda x: (jnp.sort(x, 1), jnp.median(x, 0))),
    "extrema": on_image(lambda x: (jnp.argmax(x, 1), lax.top_k(x, 4)[0])),
    "running sums": on_image(lambda x: (jnp.cumsum(x, 1), lax.cumlogsumexp(x, 0))),
    "elementary": on_image(lambda x: (jnp.sin(x), jnp.log(1 + x * x), jnp.exp(x) / (1 + jnp.exp(x)))),
    "convolution": on_image(lambda x: lax.conv_general_dilated(x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME")),
    "pooling": on_image(
        jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()),
    ),
    "small matrices": (
        lambda m: (jnp.linalg.inv(m), jnp.linalg.det(m), m @ m),
        lambda: (normal(1024, 3, 3),),
        {"batch": (P(ALL),)},
    ),
}
PROGRAMS["states and inputs"] = (
    jax.value_and_grad(states_and_inputs, (0, 1, 2)),
    lambda: (normal(8, 128), normal(64, 8, 128), normal(128, 128)),
    {"over time": (P(), P(ALL), P())},
)
CASES = [(name, layout) for name, (_, _, layouts) in PROGRAMS.items() for layout in layouts]


def placed(arguments: Any, specs: Any, kind: Any = AxisType.Auto) -> Any:
    """The shardings of the arguments: a tree like theirs."""
    leaves, structure = jax.tree.flatten(arguments)
    found = structure.flatten_up_to(specs)
    return structure.unflatten([NamedSharding(mesh(kind), spec) for _, spec in zip(leaves, found, strict=True)])


def committed(f: Callable[..., Any], arguments: Any, places: Any, optimise: Any) -> Any:
    """Arguments that are on their devices."""
    return jax.jit(optimise(f)).lower(*jax.device_put(arguments, places)).compile()


def told(f: Callable[..., Any], arguments: Any, places: Any, optimise: Any) -> Any:
    """Arguments that `jit` is told to put there."""
    return jax.jit(optimise(f), in_shardings=places).lower(*arguments).compile()


def constrained(f: Callable[..., Any], arguments: Any, places: Any, optimise: Any) -> Any:
    """Arguments of one device, which the function itself spreads."""
    return jax.jit(optimise(lambda *xs: f(*lax.with_sharding_constraint(xs, places)))).lower(*arguments).compile()


def assert_moves_no_more(compile_with: Callable[[Any], Any]) -> Counter[str]:
    """Compiles with and without `optimize`, and compares; returns what the natural program moves."""
    natural, optimised = compile_with(lambda f: f), compile_with(ag.optimize)
    was, now = collectives(natural), collectives(optimised)
    assert all(now[kind] <= was[kind] for kind in now), f"{dict(was)} became {dict(now)}"
    results = zip(*(jax.tree.leaves(each.output_shardings) for each in (natural, optimised)), strict=True)
    for result, shape in zip(results, jax.tree.leaves(natural.out_info), strict=True):
        assert result[1].is_equivalent_to(result[0], len(shape.shape)), result
    return was


@pytest.mark.parametrize("way", [committed, told, constrained])
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_no_collective_is_added(name: str, layout: str, way: Callable[..., Any]) -> None:
    """Whether arguments, `jit` or the function itself say where values are: not one collective more, nor a byte."""
    f, make, layouts = PROGRAMS[name]
    arguments = make()
    places = placed(arguments, layouts[layout])
    moved = assert_moves_no_more(lambda optimise: way(f, arguments, places, optimise))
    if name in ("mlp", "layers", "rnn", "cross-entropy"):
        assert moved["bytes"] > 0, "nothing to compare"


def block(key: Any) -> Any:
    """A layer of ours."""
    return nn.TransformerBlock(4, 32, is_causal=True, key=key)


TENSOR = {"**.up": {"out": "model"}, "**.down": {"in": "model"}, "**.*_proj": {"out": "model"}}
MODELS = {"block": lambda: block(KEY), "stack": lambda: nn.Stack(block, 3, key=KEY)}
RULES: dict[str, tuple[Any, P]] = {
    "data": ({}, P(ALL)),
    "tensor": (TENSOR, ROWS),
    "fully": ({"**": ALL}, P(ALL)),
    "tensor and fully": (TENSOR | {"**": "data"}, ROWS),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("model", MODELS)
def test_no_collective_is_added_to_transformers(model: str, rules: str) -> None:
    """A training step of a transformer block, alone and in a stack, spread by `ag.shard`."""
    spread, batch = RULES[rules]
    x = jax.device_put(normal(16, 64, 32), NamedSharding(mesh(), batch))
    start = ag.shard(MODELS[model](), mesh(), spread)
    moved = assert_moves_no_more(lambda optimise: jax.jit(optimise(stepped(block_loss))).lower(start, x).compile())
    assert moved["bytes"] > 0


def test_no_collective_is_added_to_a_shard_map() -> None:
    """Per-device programs with collectives of their own, with automatic and with explicit axes."""
    arguments = ([(normal(64, 64), normal(64))] * 2, normal(128, 64), normal(128, 64))

    def local(params: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(mlp_loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - lax.pmean(g, ALL), params, grads), lax.pmean(value, ALL)

    for kind in (AxisType.Auto, AxisType.Explicit):
        places = placed(arguments, ([(P(), P())] * 2, P(ALL), P(ALL)), kind)
        step = jax.shard_map(
            local, mesh=mesh(kind), in_specs=(P(), P(ALL), P(ALL)), out_specs=P(), check_vma=kind is AxisType.Auto
        )
        moved = assert_moves_no_more(lambda optimise, f=step, at=places: committed(f, arguments, at, optimise))
        assert moved["all-reduce"] > 0


@pytest.mark.parametrize("layout", ["data", "fully"])
def test_no_collective_is_added_with_explicit_axes(layout: str) -> None:
    """Where the types say how values are spread."""
    f, make, layouts = PROGRAMS["mlp"]
    arguments = make()
    places = placed(arguments, layouts[layout], AxisType.Explicit)

    def gathered(params: Any, *batch: Any) -> Any:
        return f(jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, P()), params), *batch)

    with jax.set_mesh(mesh(AxisType.Explicit)):
        assert_moves_no_more(lambda optimise: committed(gathered, arguments, places, optimise))


def test_constants_name_devices_too() -> None:
    """A function of one argument of one device, which closes over an array that is spread."""
    weight = jax.device_put(normal(512, 1024), NamedSharding(mesh(), BOTH))
    assert_moves_no_more(
        lambda optimise: jax.jit(optimise(lambda x: jnp.argmax(weight * x, 1))).lower(jnp.float32(2)).compile()
    )


def test_what_does_not_run_says_so() -> None:
    """The report names the passes and rules that are left out; on one device they run."""
    f, make, layouts = PROGRAMS["extrema"]
    reports: list[Any] = []
    places = placed(make(), layouts["rows"])
    for one in (lambda *xs: f(*xs), lambda *xs: f(*lax.with_sharding_constraint(xs, places))):
        jax.jit(ag.optimize(one, on_report=reports.append)).lower(*make())
    alone, spread = ({(d.rule, d.fired) for d in report.decisions} for report in reports)
    assert ("argmax-by-blocks", True) in alone - spread
    assert {("argmax-by-blocks", False), ("streaming", False)} <= spread
    said = {d.reason for d in reports[1].decisions if d.rule in ("argmax-by-blocks", "streaming")}
    assert all("spread over devices" in reason for reason in said)


def test_what_works_entry_by_entry_runs() -> None:
    """Elementary functions become the same on several devices as on one."""
    f, make, layouts = PROGRAMS["elementary"]
    fired: list[set[str]] = []
    places = placed(make(), layouts["both"])
    for arguments in (make(), jax.device_put(make(), places)):
        one = ag.optimize(lambda x: f(x), on_report=lambda report: fired.append({d.rule for d in report.fired}))
        jax.jit(one).lower(*arguments)
    # What takes the place of an argument is put in order on one device alone.
    assert fired[0] - {"late-writes"} == fired[1] != set()
