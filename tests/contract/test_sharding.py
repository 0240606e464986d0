"""Arrays on several devices: shardings in and out, constraints, types that carry shardings, shard_map, memories."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import aerogel as ag

from ._programs import (
    LENGTH,
    WIDTH,
    assert_fires,
    assert_lowers_alike,
    beside_rewrite,
    primitives,
    result_shapes,
    stacked_sum,
    start,
)


def mesh(kind: AxisType = AxisType.Auto) -> Mesh:
    """Eight devices in a 4 by 2 grid."""
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)


def grid_start() -> jax.Array:
    """A first carry `[8, WIDTH // 8]`: stacked over time, 4 MB on all devices together."""
    return start().reshape(8, -1)


def carry_and_sum(x):
    """The last carry, as large as `x`, and the sum over time of the stacked outputs."""
    last, ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=LENGTH)
    return last, ys.sum(0)


def assert_same_placement(got, want):
    """Same values in the same places: each leaf's sharding is equivalent."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim), (a.sharding, b.sharding)
        assert a.sharding.memory_kind == b.sharding.memory_kind
        np.testing.assert_allclose(a, b, rtol=1e-5)


SPECS = {"rows": P("x"), "both": P("x", "y"), "columns": P(None, ("x", "y")), "replicated": P()}


@pytest.mark.parametrize("name", SPECS)
def test_in_and_out_shardings(name):
    """`in_shardings` and `out_shardings` place arguments and results as without `optimize`."""
    sharding = NamedSharding(mesh(), SPECS[name])
    options = {"in_shardings": sharding, "out_shardings": (sharding, NamedSharding(mesh(), P("x")))}
    want = jax.jit(carry_and_sum, **options)(grid_start())
    assert want[0].sharding.spec == SPECS[name]
    assert_same_placement(jax.jit(ag.optimize(carry_and_sum), **options)(grid_start()), want)
    assert_fires(carry_and_sum, grid_start(), gone=(LENGTH, 8, WIDTH // 8))


@pytest.mark.parametrize("name", SPECS)
def test_sharded_arguments(name):
    """Where the arguments' own shardings decide, the program that runs and its results are placed alike."""
    x = jax.device_put(grid_start(), NamedSharding(mesh(), SPECS[name]))
    assert_same_placement(jax.jit(ag.optimize(carry_and_sum))(x), jax.jit(carry_and_sum)(x))


def test_sharding_constraints_are_kept():
    """`with_sharding_constraint` stays where it stands, on values inside and outside of loops."""
    sharding = NamedSharding(mesh(), P("x", "y"))

    def f(x):
        y = lax.with_sharding_constraint(jnp.tanh(x), sharding)
        return lax.fori_loop(0, 3, lambda _, c: lax.with_sharding_constraint(jnp.tanh(c), sharding), y)

    assert_lowers_alike(f, jnp.ones((8, 4)))
    assert_same_placement(jax.jit(ag.optimize(f))(jnp.ones((8, 4))), jax.jit(f)(jnp.ones((8, 4))))
    both = beside_rewrite(f)
    natural, optimised = (jax.make_jaxpr(g)(start(), jnp.ones((8, 4))) for g in (both, ag.optimize(both)))
    assert primitives(natural)["sharding_constraint"] == primitives(optimised)["sharding_constraint"] == 2


def test_a_constraint_on_the_carry_of_a_rewritten_loop():
    """The body's constraint is still there after the rewrite, and the results are placed by it."""
    sharding = NamedSharding(mesh(), P("x", "y"))

    def f(x):
        def body(c, _):
            c = lax.with_sharding_constraint(jnp.sin(c), sharding)
            return c, c

        return lax.scan(body, x, None, length=LENGTH)[1].sum(0)

    assert_fires(f, grid_start(), gone=(LENGTH, 8, WIDTH // 8))
    assert primitives(jax.make_jaxpr(ag.optimize(f))(grid_start()))["sharding_constraint"] >= 1
    want, got = jax.jit(f)(grid_start()), jax.jit(ag.optimize(f))(grid_start())
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_explicit_sharding_types():
    """Where types carry shardings, every result has the sharding in its type that plain JAX gives it."""
    grid = mesh(AxisType.Explicit)
    with jax.set_mesh(grid):
        x = jax.device_put(grid_start()[:, :64], P("x", "y"))
        w = jax.device_put(jnp.full((64, 64), 1 / 64), P("y", None))

        def f(x, w):
            y = jnp.sin(x) * 2
            z = jnp.einsum("bi,ij->bj", y, w, out_sharding=P("x", None))
            last, ys = lax.scan(lambda c, _: (jnp.tanh(c), jnp.tanh(c)), z, None, length=4)
            return y, z, y.sum(1), y.T, last, ys, ys.sum(0), jax.sharding.reshard(y, P(None, "x"))

        want = jax.jit(f)(x, w)
        assert jax.typeof(want[0]).sharding.spec == P("x", "y")
        assert_same_placement(jax.jit(ag.optimize(f))(x, w), want)
        assert_same_placement(ag.optimize(f)(x, w), want)
        grad = jax.grad(lambda x: f(x, w)[1].sum())
        assert_same_placement(jax.jit(ag.optimize(grad))(x), jax.jit(grad)(x))


@pytest.mark.parametrize("spec", [P("x"), P("x", "y"), P(None, "y"), P()], ids=str)
def test_a_loop_that_could_be_rewritten_with_explicit_types(spec):
    """Rewritten or refused, a loop over explicitly sharded values gives the same values of the same type."""
    with jax.set_mesh(mesh(AxisType.Explicit)):
        x = jax.device_put(grid_start(), spec)
        assert_same_placement(jax.jit(ag.optimize(carry_and_sum))(x), jax.jit(carry_and_sum)(x))


def per_device(x):
    """The body of a shard_map: a loop that can be rewritten, and a collective. Result: `[1]` on each device."""
    return lax.psum(stacked_sum(x), "y")[None]


COLLECTIVE = re.compile(r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(-start)?\(")


def collectives_in_loops(jitted, x) -> int:
    """How many collectives stand in the body of a loop of the compiled program."""
    text = jitted.lower(x).compile().as_text()
    bodies = [part for part in text.split("\n\n") if not part.lstrip().startswith("ENTRY")]
    assert "while(" in text
    return sum(len(COLLECTIVE.findall(part)) for part in bodies)


READERS = {
    "sum": lambda ys: ys.sum(),
    "mean square": lambda ys: (ys**2).mean(),
    "largest": lambda ys: ys.max((0, 2)),
    "over time": lambda ys: ys.sum(0),
    "head": lambda ys: (ys @ jnp.ones((ys.shape[-1], 4))).sum(0),
    "softmax": lambda ys: jax.nn.softmax(ys, -1).sum(0),
    "reshaped": lambda ys: jnp.exp(ys.reshape(LENGTH, -1, 4)).sum(0),
    "a part of each step": lambda ys: jnp.exp(ys[:, :, 3:40]).sum(0),
}


def with_reader(name):
    """A loop whose stacked outputs go through one reader."""
    return lambda x: READERS[name](lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=LENGTH)[1])


@pytest.mark.parametrize("name", READERS)
def test_no_collective_moves_into_a_loop(name):
    """A collective after the loop is one; in it, it would be one in every step. Wherever the mesh is named."""
    sharding = NamedSharding(mesh(), P("x", "y"))
    f = with_reader(name)
    placed = jax.device_put(grid_start(), sharding)
    for x, options in [
        (placed, {}),
        (grid_start(), {"in_shardings": sharding}),
        (placed, {"in_shardings": sharding, "out_shardings": NamedSharding(mesh(), P())}),
    ]:
        natural, optimised = jax.jit(f, **options), jax.jit(ag.optimize(with_reader(name)), **options)
        assert collectives_in_loops(natural, x) == 0
        assert collectives_in_loops(optimised, x) == 0
        np.testing.assert_allclose(optimised(x), natural(x), rtol=1e-4)


def test_no_collective_moves_into_a_loop_with_its_input():
    """What makes an input of a loop stays before it where its steps would communicate."""
    sharding = NamedSharding(mesh(), P(None, None, "x"))
    xs = jnp.ones((LENGTH, 128, 16))

    def f(xs):
        rows = (xs * 2).reshape(LENGTH, 16, 128)
        return lax.scan(lambda c, x: (jnp.sin(c + x), None), jnp.zeros(rows.shape[1:]), rows)[0]

    for x, options in [(jax.device_put(xs, sharding), {}), (xs, {"in_shardings": sharding})]:
        assert collectives_in_loops(jax.jit(f, **options), x) == 0
        assert collectives_in_loops(jax.jit(ag.optimize(lambda x: f(x)), **options), x) == 0
    assert_fires(f, xs, gone=(LENGTH, 16, 128))


def test_sums_over_time_are_still_fused_on_many_devices():
    """What needs no collective in a step moves in, also where only `in_shardings` names the devices."""
    sharding = NamedSharding(mesh(), P("x", "y"))
    for f, fires in ((with_reader("over time"), True), (with_reader("sum"), False)):
        reports = []
        jax.jit(ag.optimize(f, on_report=reports.append), in_shardings=sharding).lower(grid_start())
        assert any(d.rule == "loop-fusion" for d in reports[0].fired) == fires
        one = NamedSharding(Mesh(jax.devices()[:1], "x"), P())
        jax.jit(ag.optimize(f, on_report=reports.append), in_shardings=one).lower(grid_start())
        assert reports[1].fired


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_shard_map(where, kind):
    """`optimize(shard_map(f))` and `shard_map(optimize(f))`: per-device programs with collectives."""

    def mapped(f):
        return jax.shard_map(f, mesh=mesh(kind), in_specs=P("x", "y"), out_specs=P("x"))

    # Eight times as large, because here the stacked array is per device.
    x = jax.device_put(jnp.tile(start(), (8, 1)), NamedSharding(mesh(kind), P("x", "y")))
    f = ag.optimize(mapped(per_device)) if where == "outside" else mapped(ag.optimize(per_device))
    assert_same_placement(jax.jit(f)(x), jax.jit(mapped(per_device))(x))


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_loop_in_a_shard_map_is_rewritten_or_refused_with_a_reason(where):
    """The stacked array of each device is gone, or the report names the loop and says why it is still there."""
    reports = []

    def mapped(f):
        return jax.shard_map(f, mesh=mesh(), in_specs=P("x", "y"), out_specs=P("x"))

    def optimised(f):
        return ag.optimize(f, on_report=reports.append)

    f = optimised(mapped(per_device)) if where == "outside" else mapped(optimised(per_device))
    x = jnp.tile(start(), (8, 1))
    local = (LENGTH, 2, WIDTH // 2)
    assert result_shapes(jax.make_jaxpr(mapped(per_device))(x))[local] == 1
    if result_shapes(jax.make_jaxpr(f)(x))[local] > 0:
        assert any("_programs.py" in decision.where and decision.reason for decision in reports[0].refused)


def test_shard_map_gradients_and_unvarying_values():
    """Gradients through a shard_map, and values that are equal on all devices, keep their varying types."""

    def local(w, x):
        y = jnp.sin(x * w)
        total = lax.psum(y.sum(), ("x", "y"))
        carry = lax.scan(lambda c, row: (c + row.sum(), None), lax.pcast(w, ("x", "y"), to="varying"), y)[0]
        return total * w, carry.reshape(1, 1)

    def f(w, x):
        out = jax.shard_map(local, mesh=mesh(), in_specs=(P(), P("x", "y")), out_specs=(P(), P("x", "y")))(w, x)
        return out[0] + out[1].sum()

    w, x = jnp.float32(0.5), jnp.ones((8, 4))
    for g in (f, jax.grad(f), jax.value_and_grad(f, argnums=(0, 1))):
        assert_same_placement(jax.jit(ag.optimize(g))(w, x), jax.jit(g)(w, x))
    assert_same_placement(jax.jit(jax.grad(ag.optimize(f)))(w, x), jax.jit(jax.grad(f))(w, x))


def test_vmap_over_a_mesh_axis():
    """`spmd_axis_name` reaches shard_map and constraints inside an optimised function."""
    sharding = NamedSharding(mesh(), P("y"))

    def f(x):
        return lax.with_sharding_constraint(jnp.tanh(x), sharding)

    x = jnp.ones((4, 8))
    assert_lowers_alike(jax.vmap(f, spmd_axis_name="x"), x)
    got = jax.jit(jax.vmap(ag.optimize(f), spmd_axis_name="x"))(x)
    assert_same_placement(got, jax.jit(jax.vmap(f, spmd_axis_name="x"))(x))


def test_memory_kinds():
    """Arguments and results in host memory, and moves between memories inside, are kept."""
    device = NamedSharding(mesh(), P("x"), memory_kind="device")
    host = NamedSharding(mesh(), P("x"), memory_kind="pinned_host")

    def f(x):
        there = jax.device_put(jnp.tanh(x), host)
        return jax.device_put(there, device) * 2, there

    x = jax.device_put(jnp.ones((8, 4)), device)
    assert_lowers_alike(f, x)
    want = jax.jit(f)(x)
    assert want[1].sharding.memory_kind == "pinned_host"
    assert_same_placement(jax.jit(ag.optimize(f))(x), want)
    total, got = jax.jit(ag.optimize(beside_rewrite(f)))(start(), x)
    assert_same_placement(got, want)
    np.testing.assert_allclose(total, jax.jit(stacked_sum)(start()), rtol=1e-5)


def test_committed_and_uncommitted_devices():
    """A function runs where its committed arguments are, and on the default device otherwise."""
    second = jax.devices()[3]
    g = jax.jit(ag.optimize(stacked_sum))
    assert g(jax.device_put(start(), second)).devices() == {second}
    with jax.default_device(second):
        assert g(np.asarray(start())).devices() == {second}
    assert g(start()).devices() == {jax.devices()[0]}


def test_mismatched_devices_are_jax_s_error():
    """Arguments on two devices give JAX's message, which names `f` and its arguments."""

    def add(left, right):
        return left + right

    args = [jax.device_put(jnp.ones(3), device) for device in jax.devices()[:2]]
    messages = []
    for f in (add, ag.optimize(add)):
        with pytest.raises(ValueError, match="incompatible devices") as error:
            jax.jit(f)(*args)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
