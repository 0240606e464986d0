"""The table of a model: what it is made of, what its parts do, and that making it costs nothing."""

import threading
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel.transform import Row


class Linear(ag.Module):
    weight: Any

    def __call__(self, x: Any, scale: Any = None, *, train: bool = True) -> Any:
        assert train is True, "a bool stays one"
        return x @ self.weight if scale is None else scale * (x @ self.weight)


class Biased(Linear):
    bias: Any = None

    def __call__(self, x: Any, scale: Any = None, *, train: bool = True) -> Any:
        return super().__call__(x, scale, train=train) + self.bias


class Block(ag.Module):
    inner: Linear
    outer: Linear

    def __call__(self, x: Any) -> Any:
        return self.outer(self.inner(x))


class Model(ag.Module):
    embed: Linear
    blocks: Any
    key: Any
    looped: Linear
    unused: Biased
    head: Linear

    def __init__(self, n: int) -> None:
        self.embed = Linear(jnp.ones((n, n), jnp.bfloat16))
        block = Block(Linear(jnp.ones((n, n))), Linear(jnp.ones((n, n))))
        self.blocks = [block, block]
        self.key = jax.random.key(0)
        self.looped = Linear(jnp.ones((n, n)))
        self.unused = Biased(jnp.ones((n, n)), jnp.ones(n))
        self.head = Linear(self.embed.weight)

    def __call__(self, x: Any) -> Any:
        x = self.embed(x, 2.0)
        for block in self.blocks:
            x = jax.vmap(block)(x)
        x, _ = jax.lax.scan(lambda c, _: (self.looped(c), None), x, None, length=5)
        return self.head(x), "text"


N = 4


def rows(summary: ag.Summary) -> dict[str, Row]:
    """The rows by path."""
    return {row.path: row for row in summary.rows}


def test_parameters_and_bytes() -> None:
    """Each part has the sum of what stands in it; a tied place says where, and counts nothing."""
    found = rows(ag.summary(Model(N)))
    assert found[""].params == ag.count_params(Model(N)) == 5 * N * N + N
    assert found[""].bytes == 4 * (4 * N * N + N) + 2 * N * N + 8
    assert (found["blocks"].params, found["blocks[0].inner"].params) == (2 * N * N, N * N)
    assert found["blocks[1]"].tied_to == "blocks[0]"
    assert "blocks[1].inner" not in found
    assert found["head.weight"].tied_to == "embed.weight"
    assert found["head"].params == 0
    assert found["embed.weight"].type == "bf16[4,4]"
    assert (found["key"].params, found["key"].bytes) == (0, 8)
    assert all(row.output is None and row.flops is None for row in found.values())
    late = ag.tie(ag.untie(Model(N), "head.weight"), "head.weight", "embed.weight", via=jnp.transpose)
    assert rows(ag.summary(late))["head.weight"].tied_to == "embed.weight"


def test_results_and_flops_of_the_parts() -> None:
    """Under vmap a part sees one row, in a loop it counts each time, called twice it counts twice."""
    found = rows(ag.summary(Model(N), jnp.ones((8, N))))
    assert found["embed"].output == "f32[8,4]"
    assert found["blocks[0]"].output == found["blocks[0].inner"].output == "f32[4]"
    assert found[""].output == "(f32[8,4], str)"
    wanted = ag.compiler.program_cost(jax.make_jaxpr(jnp.matmul)(jnp.ones((8, N)), jnp.ones((N, N)))).flops
    assert found["blocks[0].inner"].flops == 2 * wanted
    assert found["blocks[0]"].flops == 4 * wanted
    assert found["looped"].flops == 5 * wanted
    assert found["head"].flops == wanted
    assert found["unused"].output is None
    whole = ag.compiler.program_cost(jax.make_jaxpr(lambda m, x: m(x)[0])(Model(N), jnp.ones((8, N)))).flops
    assert found[""].flops == whole


def test_a_method_of_the_base_is_one_call() -> None:
    """`super().__call__` is a piece of the part's call, and classes are left as they were."""
    before = Linear.__call__, Biased.__call__
    biased = Biased(jnp.ones((N, N)), jnp.ones(N))
    found = rows(ag.summary(biased, jnp.ones((8, N)), train=True))
    assert found[""].output == "f32[8,4]"
    twice = rows(ag.summary(Block(biased, Linear(jnp.ones((N, N)))), jnp.ones((8, N))))
    assert twice["inner"].flops == found[""].flops
    assert (Linear.__call__, Biased.__call__) == before
    with pytest.raises(AssertionError, match="stays one"):
        ag.summary(Linear(jnp.ones((N, N))), jnp.ones((8, N)), train=False)
    assert (Linear.__call__, Biased.__call__) == before


def test_nothing_is_allocated() -> None:
    """A model that fits no memory has a summary, made of shapes; nothing of it is computed."""
    huge = jax.eval_shape(lambda: Model(10**5))
    summary = ag.summary(huge, jax.ShapeDtypeStruct((8, 10**5), jnp.float32))
    assert summary.params == 5 * 10**10 + 10**5
    assert rows(summary)["head.weight"].tied_to == "embed.weight"
    assert (summary.flops or 0) > 10**12


def test_it_prints_in_80_columns() -> None:
    """Whatever the names are; fewer levels on request; frozen parts are named, and counted at the end."""
    long = {"a name that is longer than all names are in a model " + c: Model(N) for c in "ab"}
    text = str(ag.summary(long))
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, ag.summary(Model(N), jnp.ones((8, N))).table(width=60).splitlines())) <= 60
    model = ag.freeze(Model(N), ("blocks", "unused.bias"))
    summary = ag.summary(model)
    lines = summary.table(depth=1).splitlines()
    assert [line.split()[0] for line in lines[3:9]] == ["embed", "blocks", "key", "looped", "unused", "head"]
    assert "list, frozen" in lines[4]
    assert "frozen" not in lines[7]
    assert lines[-1].startswith(f"{summary.params:,} parameters, {2 * N * N + N:,} of them not trained")
    assert summary.trainable == ag.count_params(model, ag.trainable)


def test_any_pytree_and_equinox() -> None:
    """Dicts and Equinox modules have a table too, also called."""
    net = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
    found = rows(ag.summary({"net": net, "x": [1, None]}))
    assert found["['net'].layers[0].weight"].params == 8
    assert rows(ag.summary(net, jnp.ones(2)))[""].flops
    assert ag.summary({}).params == 0
    assert "0 parameters" in str(ag.summary(jnp.array(1)))


class Quiet(ag.Module):
    weight: Any

    def __call__(self, x: Any) -> Any:
        return x


def test_threads_do_not_see_each_other() -> None:
    """A call of the same part in another thread meanwhile is not counted."""

    class Slow(ag.Module):
        inner: Quiet

        def __call__(self, x: Any) -> Any:
            worker = threading.Thread(target=lambda: done.append(self.inner(x0)))
            worker.start()
            worker.join()
            return x

    done: list[Any] = []
    x0 = jnp.ones((8, N))
    assert rows(ag.summary(Slow(Quiet(x0)), x0))["inner"].output is None
    assert done[0] is x0


class Moments(NamedTuple):
    mean: Any
    kind: Any


def test_containers_are_called_what_users_call_them() -> None:
    """A named tuple by its class; a list, tuple or dict that a module froze by the name that it had."""
    x = jnp.ones(2)
    found = rows(ag.summary({"net": [Quiet(Moments(x, "m")), Quiet([{"a": x}, (x, 1)])]}))
    types = {path: row.type for path, row in found.items()}
    assert types["['net'][0].weight"] == "Moments"
    assert [types[f"['net'][1].weight{step}"] for step in ("", "[0]", "[1]")] == ["list", "dict", "tuple"]
    assert types["['net']"] == "list"


def test_a_part_that_returns_nothing() -> None:
    """None is no leaf, but it is what the part returned: beside other results too."""

    class Logged(ag.Module):
        layer: Linear

        def __call__(self, x: Any) -> Any:
            return self.layer(x), None

    class Silent(ag.Module):
        inner: Logged

        def __call__(self, x: Any) -> Any:
            self.inner(x)

    found = rows(ag.summary(Silent(Logged(Linear(jnp.ones((3, 4))))), jnp.ones((8, 3))))
    assert (found[""].output, found["inner"].output, found["inner.layer"].output) == (
        "None",
        "(f32[8,4], None)",
        "f32[8,4]",
    )
