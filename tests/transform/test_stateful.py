"""Variables and `stateful`: the laws that are not about one program's numbers."""

import copy
import inspect
import pickle
from contextlib import nullcontext
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import aerogel as ag


class Counter(ag.Module):
    """Counts its calls."""

    count: ag.Variable
    weight: Any

    def __call__(self, x: Any) -> Any:
        self.count.set(self.count + 1)
        return self.weight * x


class Norm(ag.Module):
    """Subtracts the mean over the axis "batch", of which it keeps a running mean; the running one for inference."""

    mean: ag.Variable
    is_training: bool = True

    def __call__(self, x: Any) -> Any:
        if not self.is_training:
            return x - self.mean
        mean = lax.pmean(x, "batch")
        self.mean.set(0.5 * self.mean + 0.5 * mean)
        return x - mean


def counter() -> Counter:
    """One that has counted nothing."""
    return Counter(ag.Variable(0), jnp.float32(2.0))


call = ag.stateful(Counter.__call__)
XS = jnp.arange(6.0).reshape(3, 2)


def batched(model: Any, xs: Any) -> Any:
    """The model over a batch."""
    return jax.vmap(model, axis_name="batch")(xs)


def test_the_module_itself_does_not_change() -> None:
    """The updates are in the model that is returned, which has the structure and types of the one that was given."""
    model = counter()
    _, new = call(model, 1.0)
    assert (int(model.count.value), int(new.count.value)) == (0, 1)
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, model)
    f: Any = jax.jit(call)
    for _ in range(3):
        _, model = f(model, 1.0)
    assert f._cache_size() == 1


def test_results_may_be_models() -> None:
    """A model that the function returns holds the values at its end, and no place of the call."""

    def f(model: Any, x: Any) -> Any:
        model(x)
        return {"model": model, "count": model.count}

    out, _ = ag.stateful(f)(counter(), 1.0)
    assert (int(out["model"].count.value), int(out["count"].value)) == (1, 1)
    assert type(out["count"]) is ag.Variable


def test_batch_statistics_under_jit_and_grad() -> None:
    """`jax.grad(stateful(loss), has_aux=True)` gives the gradient and the new statistics, which do not depend on it."""

    class Model(ag.Module):
        weight: Any
        norm: Norm

        def __call__(self, x: Any) -> Any:
            return self.norm(self.weight * x)

    model = Model(jnp.array([2.0, 3.0]), Norm(ag.Variable(jnp.zeros(2))))
    grads, new = jax.jit(jax.grad(ag.stateful(lambda m, xs: (batched(m, xs) ** 2).sum()), has_aux=True))(model, XS)
    np.testing.assert_allclose(new.norm.mean.value, 0.5 * (model.weight * XS).mean(0))
    np.testing.assert_array_equal(grads.norm.mean.value, 0)
    np.testing.assert_allclose(grads.weight, 2 * model.weight * ((XS - XS.mean(0)) ** 2).sum(0))
    np.testing.assert_array_equal(new.weight, model.weight)


def test_under_the_transformations_of_aerogel() -> None:
    """`ag.jit`, `ag.value_and_grad`, `ag.vmap`, `ag.scan`, `ag.checkpoint`; the gradient is None for counters too."""

    def loss(model: Any, xs: Any) -> Any:
        run = ag.checkpoint(ag.vmap(lambda x: model[0](model[1](x)).sum(), axis_name="batch"))
        return ag.scan(lambda c, _: (c + run(xs).sum(), None), 0.0, None, length=3)[0]

    @ag.jit
    def step(model: Any, xs: Any) -> Any:
        return ag.value_and_grad(ag.stateful(loss), has_aux=True)(model, xs)

    model = (counter(), Norm(ag.Variable(jnp.zeros(2))))
    for calls in (3, 6):
        (_, model), grads = step(model, XS)
        assert int(model[0].count.value) == calls
        assert grads[0].count.value is grads[1].mean.value is None
    np.testing.assert_allclose(model[1].mean.value, (1 - 0.5**6) * XS.mean(0), rtol=1e-6)


def test_reading_needs_no_call() -> None:
    """Inference: a model reads its variables as arrays anywhere."""
    model = Norm(ag.Variable(jnp.ones(2)), is_training=False)
    np.testing.assert_array_equal(jax.jit(jax.vmap(model))(XS), XS - 1)
    np.testing.assert_array_equal(ag.stateful(batched)(model, XS)[0], XS - 1)


def test_updates_outside_of_a_call_are_refused() -> None:
    """Nothing is dropped in silence: a forgotten `stateful` is an error, which names it."""
    with pytest.raises(ag.StateError, match=r"ag\.stateful\(f\)\(model"):
        counter()(1.0)
    with pytest.raises(ag.StateError, match=r"ag\.stateful\(f\)\(model"):
        ag.stateful(lambda _, model: model(1.0))(None, counter())  # not the first argument


def test_a_variable_is_a_constant_for_differentiation() -> None:
    """`jax.grad` gives zeros, without `stateful` too; `ag.partition` keeps it from optimisers; nothing unfreezes it."""
    model = (Norm(ag.Variable(jnp.ones(2)), is_training=False), jnp.ones(2))

    def loss(model: Any) -> Any:
        return ((model[0](XS) + 3 * model[0].mean.value) * model[1]).sum()

    for each in (model, ag.unfreeze(model)):
        grads = jax.grad(loss)(each)
        np.testing.assert_array_equal(grads[0].mean.value, 0)
        assert (grads[1] != 0).all()
    params, _ = ag.partition(model, ag.trainable)
    assert len(jax.tree.leaves(params)) == 1
    assert ag.stateful(lambda m: len(ag.trainable(m)))(model)[0] == 1
    inside, _ = ag.stateful(lambda m: ag.grad(loss)(m))(model)
    assert inside[0].mean.value is None
    assert len(jax.tree.leaves(optax.sgd(1e-3, momentum=0.9).init(cast(Any, params)))) == 1


def test_updates_are_differentiated_through_in_one_call() -> None:
    """What is set and read again carries its gradient, as far as the call goes."""

    def f(model: Any, x: Any) -> Any:
        lax.scan(lambda _, x: (_, model.mean.set(model.mean * x)), None, x)
        return model.mean.get().sum()

    model = Norm(ag.Variable(jnp.ones(())))
    grad = jax.grad(lambda x: ag.stateful(f)(model, x)[0])(jnp.array([2.0, 3.0, 5.0]))
    np.testing.assert_allclose(grad, [15.0, 10.0, 6.0])


def test_a_tied_variable_is_one() -> None:
    """One module in two places has one variable, which both places see."""

    class Two(ag.Module):
        a: Counter
        b: Counter

    one = counter()
    _, model = ag.stateful(lambda m, x: m.a(m.b(x)))(Two(one, one), 1.0)
    assert int(model.a.count.value) == int(model.b.count.value) == 2
    assert len(jax.tree.leaves(model)) == 2
    assert [str(tie) for tie in ag.ties(model)] == ["b = a"]


@pytest.mark.parametrize(
    "value",
    [0, True, 1.5, 1j, np.float32(1), jnp.bfloat16(1), jnp.float16(1), jnp.zeros((0, 3)), jax.random.key(0)],
    ids=str,
)
def test_values_of_all_types(value: Any) -> None:
    """Numbers, NumPy's and JAX's arrays of every type, sizes of zero, typed keys: types stay, under jit too."""

    def f(model: Any) -> Any:
        now = model.get()
        is_key = jnp.issubdtype(now.dtype, jax.dtypes.prng_key)
        model.set(jax.random.fold_in(now, 1) if is_key else now ^ True if now.dtype == bool else now + 1)

    model = ag.Variable(value)
    _, new = jax.jit(ag.stateful(f))(model)
    assert jax.typeof(new.value) == jax.typeof(jnp.asarray(model.value))
    assert not jax.typeof(new.value).weak_type
    if new.value.size:
        assert bool((new.value != model.value).all())


def test_a_python_number_fits() -> None:
    """`set(2.5)` on f16 is f16; what would lose bits is refused, and so is another shape."""
    assert ag.stateful(lambda m: m.set(2.5))(ag.Variable(jnp.float16(0)))[1].value == 2.5
    for bad in (jnp.float32(1), jnp.ones(1), "a", None, ag.Variable(1.5)):
        with pytest.raises(ag.StateError, match="keeps its shape and dtype"):
            ag.stateful(lambda m, bad=bad: m.set(bad))(ag.Variable(1))


def test_it_reads_as_an_array() -> None:
    """Arithmetic from both sides, comparisons, indexing, `jax.numpy`, shape and dtype; bound and not."""

    def results(v: Any) -> list[Any]:
        found = [v + 1, 1 - v, v * v, np.float32(2) * v, jnp.ones(2) / v, v @ v, -v, abs(v), v > 1, v[0], v**2]
        return [*found, jnp.sin(v), v.shape, v.dtype, v.ndim]

    v, want = ag.Variable(jnp.array([1.0, 2.0])), results(jnp.array([1.0, 2.0]))
    jax.tree.map(np.testing.assert_array_equal, results(v), want)
    bound, _ = ag.stateful(lambda v: results(v)[:-3])(v)
    jax.tree.map(np.testing.assert_array_equal, bound, want[:-3])


def test_layers_in_a_stack() -> None:
    """A loop over stacked layers collects the updates of each, and `assign` puts them into the model."""
    layers = jax.vmap(lambda weight: Counter(ag.Variable(0), weight))(jnp.ones(3))

    def f(layers: Any, x: Any) -> Any:
        x, new = lax.scan(lambda x, layer: call(layer, x), x, layers)
        ag.assign(layers, new)
        return x, layers.count.get()

    (_, inside), new = jax.jit(ag.stateful(f))(layers, 1.0)
    np.testing.assert_array_equal(inside, 1)
    np.testing.assert_array_equal(new.count.value, [1, 1, 1])


def test_a_cache_in_a_decoding_loop() -> None:
    """A cache that is written at a position, in a scan in a jit: the loop carries it, and nothing is threaded."""

    class Cache(ag.Module):
        keys: ag.Variable
        length: ag.Variable

        def __call__(self, key: Any) -> Any:
            self.keys.set(self.keys.get().at[self.length.get()].set(key))
            self.length.set(self.length + 1)
            return self.keys.get().sum()

    cache = Cache(ag.Variable(jnp.zeros(4)), ag.Variable(0))
    decode = jax.jit(ag.stateful(lambda m, xs: lax.scan(lambda c, x: (c, m(x)), None, xs)[1]))
    sums, cache = decode(cache, jnp.arange(1.0, 4.0))
    np.testing.assert_array_equal(sums, [1, 3, 6])
    np.testing.assert_array_equal(cache.keys.value, [1, 2, 3, 0])


def test_outside_it_is_a_pure_function() -> None:
    """`vmap` over models, `vmap` with one model, `shard_map`, `eval_shape`, donation: as for any pure function."""
    many = jax.vmap(lambda weight: Counter(ag.Variable(0), weight))(jnp.ones(3))
    np.testing.assert_array_equal(jax.vmap(call, in_axes=(0, None))(many, 1.0)[1].count.value, [1, 1, 1])
    one = jax.vmap(ag.stateful(Norm.__call__), in_axes=(None, 0), out_axes=(0, None), axis_name="batch")
    np.testing.assert_allclose(one(Norm(ag.Variable(jnp.zeros(2))), XS)[1].mean.value, 0.5 * XS.mean(0))
    mesh = jax.make_mesh((1,), ("i",))
    mapped = jax.shard_map(call, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    assert int(jax.jit(mapped)(counter(), jnp.ones(4))[1].count.value) == 1
    assert jax.eval_shape(call, counter(), 1.0)[1].count.value.shape == ()
    assert int(jax.jit(call, donate_argnums=0)(counter(), 1.0)[1].count.value) == 1
    with jax.disable_jit():
        assert int(call(counter(), 1.0)[1].count.value) == 1


def test_the_program_is_pure() -> None:
    """No reference is left in it, so the optimiser sees loops with state as it sees all others."""

    def f(model: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (x / 2, model(x)), x, None, length=64)[1].sum()

    assert not jax.make_jaxpr(ag.stateful(f))(counter(), 1.0).effects
    assert "loop-fusion" in [d.rule for d in ag.explain(ag.stateful(f))(counter(), jnp.ones(1000)).fired]


def test_a_summary_calls_a_model_with_state() -> None:
    """`ag.summary` shows results and flops of a model that updates variables when it is called."""
    assert "f32[7]" in str(ag.summary(counter(), jnp.ones(7)))


def test_it_is_kept_as_any_leaf() -> None:
    """Pickle, deepcopy, tree_map, paths."""
    model = call(counter(), 1.0)[1]
    assert pickle.loads(pickle.dumps(model)) == copy.deepcopy(model) == model
    assert int(jax.tree.map(lambda x: x * 2, model).count.value) == 2
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(model)] == [".count.value", ".weight"]
    assert repr(model) == "Counter(count=Variable(value=i32[]), weight=f32[])"


@jax.custom_vjp
def twice(x: Any) -> Any:
    """Twice `x`, with a derivative that says seven."""
    return 2 * x


twice.defvjp(lambda x: (twice(x), None), lambda _, g: (7 * g,))


@jax.custom_jvp
def doubled(x: Any) -> Any:
    """Twice `x`, with a derivative that says seven."""
    return 2 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 7 * tangents[0]))

PLACES_OF_RULES = {
    "plain": lambda step, x: step(x),
    "jit": lambda step, x: jax.jit(step)(x),
    "scan": lambda step, x: lax.scan(lambda c, _: (step(c), None), x, None, length=1)[0],
    "fori_loop": lambda step, x: lax.fori_loop(0, 1, lambda _, c: step(c), x),
    "cond": lambda step, x: lax.cond(x < 99, step, lambda x: x, x),
    "checkpoint": lambda step, x: jax.checkpoint(step)(x),
    "vmap": lambda step, x: jax.vmap(step)(jnp.stack([x]))[0],
    "scan of cond": lambda step, x: lax.scan(lambda c, _: (lax.cond(c < 99, step, abs, c), None), x, None, length=1)[0],
}


@pytest.mark.parametrize("place", PLACES_OF_RULES)
@pytest.mark.parametrize("function", [twice, doubled], ids=["custom_vjp", "custom_jvp"])
def test_functions_beside_updates_keep_their_derivatives(function: Any, place: str) -> None:
    """A derivative rule of a function that uses no variable is kept, wherever the function stands."""

    def f(model: Any, x: Any) -> Any:
        def step(x: Any) -> Any:
            model.count.set(model.count + 1)
            return function(model.weight * x)

        return PLACES_OF_RULES[place](step, x)

    (value, new), grads = jax.jit(ag.value_and_grad(ag.stateful(f), has_aux=True))(counter(), jnp.float32(3))
    assert (float(value), float(grads.weight), int(new.count.value)) == (12.0, 21.0, 1)


def test_a_variable_is_asked_what_its_array_would_be() -> None:
    """Where Python has an answer of its own: what is true, how long it is, what its items are, what NumPy reads."""
    pair, zero = ag.Variable(jnp.arange(2.0)), ag.Variable(0)
    assert [float(x) for x in pair] == [0.0, 1.0]
    assert (len(pair), pair.size, bool(zero), int(zero), float(zero), [5][zero]) == (2, 2, False, 0, 0.0, 5)
    np.testing.assert_array_equal(np.sin(pair), np.sin(np.arange(2.0, dtype=np.float32)))
    for ask in (len, iter):
        with pytest.raises(TypeError):
            ask(zero)

    def swap(pair: Any) -> Any:
        first, second = pair
        pair.set(jnp.stack([second, first]))
        return len(pair)

    assert jax.jit(ag.stateful(swap))(pair)[1].value.tolist() == [1.0, 0.0]
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(ag.stateful(lambda flag: 1 if flag else 2))(zero)


def escaping() -> Any:
    """A model that is used after its call."""
    kept: list[Any] = []
    ag.stateful(lambda model: kept.append(model))(counter())
    return kept[0](1.0)


def in_custom_rule(model: Any, x: Any) -> Any:
    """An update in a function with a derivative of its own."""
    f = jax.custom_vjp(lambda x: model(x))
    f.defvjp(lambda x: (model(x), None), lambda _, g: (g,))
    return f(x)


def shard_mapped(model: Any, x: Any) -> Any:
    """An update under `shard_map`."""
    mesh = jax.make_mesh((1,), ("i",))
    return jax.shard_map(lambda x: model(x), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())(x)


def differentiated(model: Any, x: Any) -> Any:
    """An update with what is differentiated, in a loop."""
    return jax.grad(lambda x: lax.scan(lambda c, _: (2 * c, model.weight.set(c)), x, None, length=2)[0])(x)


def sharded(model: Any, x: Any) -> Any:
    """An update in a `jit` with shardings."""
    sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("i",)), PartitionSpec())
    return jax.jit(lambda x: model(x), out_shardings=sharding)(x)


REFUSED = {
    "vmap": (lambda m, x: jax.vmap(lambda x: m.weight.set(x))(jnp.ones(3) * x), "one value for all elements"),
    "vmap of jit of scan": (
        lambda m, x: jax.vmap(jax.jit(lambda x: lax.scan(lambda c, _: (c, m.weight.set(c)), x, None, 2)[0]))(
            jnp.ones(3) * x
        ),
        "one value for all elements",
    ),
    "branch": (lambda m, x: jax.vmap(lambda x: lax.cond(x > 1, m, lambda x: x, x))(jnp.ones(3) * x), "a branch"),
    "loop": (lambda m, x: jax.vmap(lambda x: lax.while_loop(lambda x: x < 9, m, x))(jnp.ones(3) + x), "a branch"),
    "condition": (lambda m, x: lax.while_loop(lambda x: (m.count.get() < 4) & (x < 99), m, x), "condition of a loop"),
    "custom rule": (in_custom_rule, "derivative of its own"),
    "solver": (
        lambda m, x: lax.custom_linear_solve(lambda v: m.weight * v, x, lambda f, b: b / 2, symmetric=True),
        "derivative of its own",
    ),
    "sharding": (sharded, "shardings of its own"),
    "shard_map": (shard_mapped, "shard_map"),
    "grad": (differentiated, "gradient cannot leave"),
    "part": (lambda m, x: jax.vmap(lambda m: m(1.0))(m), "a part of"),
    "over": (lambda m, x: escaping(), "is over"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_update_escapes(name: str) -> None:
    """Where an update cannot be followed there is an error of ours, which names the variable; never a leaked tracer."""
    f, text = REFUSED[name]
    model = Counter(ag.Variable(0), ag.Variable(jnp.float32(2)))
    if name == "part":
        model = jax.tree.map(lambda v: jnp.stack([v, v]), model)
    # JAX's check for leaks cannot itself linearize a loop over a reference.
    leaks = nullcontext() if name == "grad" else jax.checking_leaks()
    with leaks, pytest.raises(ag.StateError, match=text) as caught:
        ag.stateful(f)(model, jnp.float32(1))
    variable, _, line = caught.value.place.partition(", at ")
    assert variable in (
        "model.count",
        "model.weight",
        "a Variable of f32[]",
        "a Variable of i32[]",
        "a variable of the model",
    )
    assert name in ("over", "part") or line.startswith("test_stateful.py:")


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, ag.jit], ids=["plain", "in jit", "in ag.jit"])
@pytest.mark.parametrize("name", ["vmap", "grad"])
def test_a_refused_update_is_told_by_path_and_line(name: str, around: Any) -> None:
    """The error says which variable and names the line of the update, also where `jit` and loops are around it."""

    def update(model: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (model.weight.set(x), (2 * x, None))[1], x, None, length=2)[0]

    over = jax.vmap if name == "vmap" else lambda f: lambda xs: jax.grad(f)(xs[0])
    f = ag.stateful(lambda m, xs: over(around(lambda x: update(m, x)))(xs))
    line = inspect.getsourcelines(update)[1] + 1
    with pytest.raises(ag.StateError) as caught:
        around(f)(Counter(ag.Variable(0), ag.Variable(jnp.float32(2))), jnp.ones(3))
    assert caught.value.place == f"model.weight, at test_stateful.py:{line}"


def a_branch(model: Any, x: Any) -> Any:
    """An update in a branch: the errors name this line."""
    model.count.set(model.count.get() + 1)
    return x


REFUSED_BRANCHES = {
    "cond": lambda m, x: ag.cond(x > 1, lambda x: a_branch(m, x), lambda x: x, x),
    "switch": lambda m, x: ag.switch((x > 1).astype(int), [lambda x: x, jax.jit(lambda x: a_branch(m, x))], x),
    "lax": lambda m, x: lax.cond(
        x > 1, lambda x: lax.scan(lambda x, _: (a_branch(m, x), 1), x, None, 2)[0], jnp.sin, x
    ),
    "before an update": lambda m, x: (lax.cond(x > 1, lambda x: a_branch(m, x), lambda x: x, x), m.weight.set(2.0))[0],
}


@pytest.mark.parametrize("name", REFUSED_BRANCHES)
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, ag.jit], ids=["plain", "in jit", "in ag.jit"])
def test_a_refused_branch_is_told_by_path_and_line(name: str, around: Any) -> None:
    """The error says which variable, and the line of the branch that uses it, however the branch got there."""
    f = ag.stateful(lambda m, xs: jax.vmap(around(lambda x: REFUSED_BRANCHES[name](m, x)))(xs))
    line = inspect.getsourcelines(a_branch)[1] + 2
    with pytest.raises(ag.StateError) as caught:
        around(f)(Counter(ag.Variable(0), ag.Variable(jnp.float32(2))), jnp.ones(3))
    assert caught.value.place == f"model.count, at test_stateful.py:{line}"
    assert [text.split()[0] for text in str(caught.value).splitlines()] == ["[AG111]", "where", "to"]


def test_assigning_to_a_variable_says_how_to_update_it() -> None:
    """`model.count = model.count + 1` is not an edit of the model but an update, and the error says `.set`."""
    with pytest.raises(ag.FrozenError, match=r"model\.count\.set\(value\)"):
        Counter(ag.Variable(0), 1.0).count = 1  # type: ignore[misc, assignment]
