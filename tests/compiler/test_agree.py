"""The judge of numbers and its float64 reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel.compiler.exactness import Exactness
from aerogel.compiler.judging.agree import Difference, NoReference, Reference, compare, float64_reference

BITWISE, NO_WORSE, REASSOCIATES = Exactness.BITWISE, Exactness.NO_WORSE, Exactness.REASSOCIATES


def reference_of(f, *args) -> Reference:
    """The reference of `f`, which must have one."""
    closed = jax.make_jaxpr(f)(*args)
    found = float64_reference(closed.jaxpr, closed.consts, jax.tree.leaves(args))
    assert isinstance(found, Reference), found
    return found


def kinds(differences: list[Difference]) -> list[str]:
    """What differs."""
    return [d.kind for d in differences]


def f32(*values: float) -> np.ndarray:
    """A float32 vector."""
    return np.array(values, np.float32)


# --- types and bits ----------------------------------------------------------------------------------------------


def test_each_kind_of_type_is_compared() -> None:
    """Number, dtype, shape and weak type of results are part of the contract, whatever the exactness."""
    x = jnp.ones(3)
    assert kinds(compare([x, x], [x])) == ["count"]
    assert kinds(compare([x.astype(jnp.bfloat16)], [x], exactness=Exactness.OTHER_BITS)) == ["dtype"]
    assert kinds(compare([x[:1]], [x])) == ["shape"]
    weak = jax.jit(lambda x: x)(1.0)
    assert kinds(compare([jnp.float32(1)], [weak])) == ["weak_type"]
    assert compare([weak], [weak]) == []


@pytest.mark.parametrize("exactness", [BITWISE, NO_WORSE, REASSOCIATES])
def test_equal_bits_agree(exactness: Exactness) -> None:
    """NaN, infinities, both zeros, no elements, keys, complex and small types agree with themselves."""
    values = [f32(np.nan, np.inf, -0.0), f32(), jax.random.key(1), np.array([1 + 1j * np.nan], np.complex64),
              jnp.array([1.5, jnp.nan], jnp.bfloat16), np.array([True]), np.zeros((), np.int8)]  # fmt: skip
    assert compare(values, [v.copy() for v in values], exactness=exactness) == []


def test_bitwise_sees_the_sign_of_zero_and_every_bit() -> None:
    """-0 is not 0 and the next float is another float; every other exactness takes -0 for 0."""
    assert kinds(compare([f32(-0.0)], [f32(0.0)], exactness=BITWISE)) == ["value"]
    assert compare([f32(-0.0)], [f32(0.0)], exactness=NO_WORSE) == []
    assert kinds(compare([np.nextafter(f32(1), f32(2))], [f32(1)], exactness=BITWISE)) == ["value"]


def test_keys_and_integers_must_be_equal() -> None:
    """No exactness but `other_bits` allows another key, integer or boolean."""
    pairs = [
        (jax.random.key(0), jax.random.key(1)),
        (np.int32([1]), np.int32([2])),
        (np.array([True]), np.array([False])),
    ]
    for got, want in pairs:
        assert kinds(compare([got], [want])) == ["value"]
        assert compare([got], [want], exactness=Exactness.OTHER_BITS) == []


def test_a_difference_says_where_and_by_how_much() -> None:
    """The text names output, worst element, both values, the error and the bound."""
    (difference,) = compare([f32(1, 2, 4)], [f32(1, 3, 4.1)])
    assert difference.at == (1,)
    assert str(difference) == (
        "output 0[1]: value is 2.0, wanted 3.0 (reassociates: off by 1, allowed 3.15e-05, float64 3.0; 2 of 3 elements)"
    )


# --- judged against float64 --------------------------------------------------------------------------------------


def test_the_better_result_is_not_called_wrong() -> None:
    """log1p(x) for log(1 + x) is 1e7 ulp away from the natural result and right: the reference decides."""
    x = f32(1e-9, 3e-8)
    natural, better = jnp.log(1 + x), jnp.log1p(x)
    reference = reference_of(lambda x: jnp.log(1 + x), x)
    assert compare([better], [natural], reference, exactness=NO_WORSE) == []
    better_reference = reference_of(jnp.log1p, x)
    assert kinds(compare([natural], [better], better_reference, exactness=NO_WORSE)) == ["value"]


def test_sums_in_another_order_agree_though_they_cancel() -> None:
    """The margin grows with the terms: a cancelling sum may lose all its digits, but no more than its terms allow."""
    x = np.float32(np.random.default_rng(0).normal(size=64) * 1e4)
    x = np.concatenate([x, -x[::-1], f32(0.125)])
    reference = reference_of(lambda x: x.sum(), x)
    in_order = np.add.accumulate(x)[-1]
    assert compare([in_order], [np.float32(0.125)], reference, exactness=REASSOCIATES) == []
    assert kinds(compare([np.float32(0.125 + 0.5)], [np.float32(0.125)], reference)) == ["value"]
    # Without cancellation the same absolute error is far too much.
    plain = reference_of(lambda x: x.sum(), f32(0.125))
    assert kinds(compare([np.float32(0.126)], [np.float32(0.125)], plain)) == ["value"]


def test_less_precise_sums_are_seen() -> None:
    """A float32 sum made in bfloat16 breaks both rules."""
    x = np.float32(np.random.default_rng(1).uniform(size=200))
    reference = reference_of(lambda x: x.sum(), x)
    poor = np.float32(jnp.sum(x.astype(jnp.bfloat16)))
    for exactness in (NO_WORSE, REASSOCIATES):
        assert kinds(compare([poor], [x.sum()], reference, exactness=exactness)) == ["value"]


def test_no_worse_allows_a_tenth_and_a_unit() -> None:
    """The worst error may grow by 10 % and one unit in the last place, not by three."""
    reference = Reference((np.array([1.0, 1.0]),), (np.zeros(2),))
    eps = np.float32(np.finfo(np.float32).eps)
    want = f32(1 + 20 * eps, 1)
    assert compare([f32(1, 1 + 22 * eps)], [want], reference, exactness=NO_WORSE) == []
    assert kinds(compare([f32(1, 1 + 26 * eps)], [want], reference, exactness=NO_WORSE)) == ["value"]


def test_lost_finiteness_is_seen_and_gained_is_not() -> None:
    """NaN or overflow where the natural result is finite is wrong; a right number where it overflows is better."""
    reference = Reference((np.array([2.0]),), (np.zeros(1),))
    for exactness in (NO_WORSE, REASSOCIATES):
        for lost in (np.nan, np.inf):
            assert kinds(compare([f32(lost)], [f32(2)], reference, exactness=exactness)) == ["value"]
        assert compare([f32(2)], [f32(np.inf)], reference, exactness=exactness) == []
        assert kinds(compare([f32(3)], [f32(np.inf)], reference, exactness=exactness)) == ["value"]


def test_finite_only_judges_finite_inputs() -> None:
    """Anything goes when an input holds inf or nan."""
    got, want = [f32(0)], [f32(np.nan)]
    assert compare(got, want, exactness=Exactness.FINITE, inputs=[f32(np.inf)]) == []
    assert kinds(compare([f32(0)], [f32(1)], exactness=Exactness.FINITE, inputs=[f32(1), np.int32(1)])) == ["value"]


def test_the_reference_is_made_only_when_bits_differ() -> None:
    """A function that makes the reference is not called for equal results, and once for many outputs."""
    calls = []

    def make() -> NoReference:
        calls.append(1)
        return NoReference("none")

    assert compare([f32(1)], [f32(1)], make) == []
    assert calls == []
    assert len(compare([f32(1), f32(2)], [f32(2), f32(1)], make)) == 2
    assert calls == [1]


# --- ties and NaN that nobody can decide -------------------------------------------------------------------------


def test_an_argmax_between_near_ties_is_not_judged_but_a_clear_one_is() -> None:
    """Where rounding decides an integer, either is right; its spread says so."""
    x = f32(0.1, 0.2, 0.3, 3.0)
    close = reference_of(lambda x: jnp.argmax(jnp.stack([x[0] + x[1], x[2] * 1.0, x[2]])), x)
    clear = reference_of(lambda x: jnp.argmax(jnp.stack([x[0] + x[1], x[3] * 1.1])), x)
    assert compare([np.int32(1)], [np.int32(0)], close) == []
    assert kinds(compare([np.int32(0)], [np.int32(1)], clear)) == ["value"]


def test_nan_that_max_may_drop_is_not_judged() -> None:
    """jaxlib 0.10.2 on CPU drops NaN in max and min depending on the size; sums keep it."""
    x = f32(1, np.nan, 2)
    for f in (jnp.max, jnp.min, lambda x: jnp.max(x) * 2 + 1):
        reference = reference_of(f, x)
        assert np.isinf(reference.spread[0])
        for exactness in (NO_WORSE, REASSOCIATES):
            assert compare([np.float32(2)], [np.float32(np.nan)], reference, exactness=exactness) == []
    reference = reference_of(lambda x: (jnp.max(x[::2]), jnp.sum(x)), x)
    assert kinds(compare(f32(1, 3), f32(2, np.nan), reference)) == ["value", "value"]


# --- the reference -----------------------------------------------------------------------------------------------


def _scan(x):
    def step(c, x):
        c = jnp.tanh(c + x)
        return c, (c, c > 0)

    return jax.lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x, reverse=True)


def _while(x):
    return jax.vmap(lambda x: jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + x, s[1] * 0.9), (x, 1.0)))(x[0])


def _keys(x):
    key, other = jax.random.split(jax.random.key(int(x.size)))
    return jax.random.normal(key, (3,)), jax.random.uniform(other, (2,), jnp.bfloat16), other


@jax.custom_vjp
def _ruled(x):
    return jnp.sin(x)


_ruled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * 2,))

PROGRAMS = {
    "scan": _scan,
    "batched while": _while,
    "random": _keys,
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "switch": lambda x: jax.lax.switch(jnp.argmax(x[0]), [jnp.sin, jnp.cos, jnp.tan], x),
    "solve": lambda x: jnp.linalg.solve(x[:3, :3] + 3 * jnp.eye(3), x[0]),
    "gradients": jax.grad(lambda x: jax.nn.logsumexp(_scan(_ruled(x))[1][0]) + jnp.max(x)),
    "checkpoint": jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda y: jnp.sin(y) @ y.T)(x))),
    "scatter": lambda x: (x.at[0].add(x[1]), x.at[:, 1].multiply(2), x.at[-1].set(0.5), x.at[0].max(0.1)),
    "fft": lambda x: (jnp.fft.rfft(x), jnp.abs(x.astype(complex) * 1j)),
    "casts": lambda x: (x.astype(jnp.bfloat16).astype(jnp.float32), x.astype(int), x > 0, jnp.arange(3) + x[0]),
    "empty": lambda x: (x[:0].sum(0), jnp.zeros((0, 3)), jnp.prod(x[:0])),
    "small": lambda x: (x.astype(jnp.float16).sum(0), jnp.var(x.astype(jnp.bfloat16), 0)),
    "bits": lambda x: jax.lax.bitcast_convert_type(jax.lax.reduce_precision(x, 8, 4), jnp.int32),
    "product": lambda x: jnp.einsum("ij,kj->ik", x, x, preferred_element_type=x.dtype) + jnp.eye(4, dtype=x.dtype),
    "convolution": lambda x: jnp.convolve(x[0], x[1]),
    "cumulative": lambda x: (jnp.cumsum(x, 0), jax.lax.cummax(x, 1), jax.lax.cumlogsumexp(x), jnp.sort(x, 0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_reference_is_what_the_program_computes(name: str) -> None:
    """Every result lies within the judge's bounds of float64, and the reference has float64's own digits."""
    f = PROGRAMS[name]
    x = np.float32(np.random.default_rng(3).normal(size=(4, 3)))
    x = np.abs(x) + 0.1 if name == "batched while" else x
    reference = reference_of(f, x)
    results = jax.tree.leaves(jax.jit(f)(x))
    assert len(results) == len(reference.values)
    for result, value, spread in zip(results, reference.values, reference.spread, strict=True):
        assert spread.shape == value.shape
        if jnp.issubdtype(result.dtype, jnp.inexact):
            assert value.dtype == (np.complex128 if result.dtype == np.complex64 else np.float64)
            truth = value.astype(result.dtype)
            assert compare([np.asarray(result)], [truth], Reference((value,), (spread,))) == []
            # Not vacuous: noise moves results by a few units in the last place and no more.
            eps = float(jnp.finfo(jnp.bfloat16 if name == "casts" else result.dtype).eps)
            assert np.all(spread <= 100 * eps * max(1.0, np.abs(value).max(initial=0)))
    assert name not in ("scan", "solve") or any(np.any(s > 0) for s in reference.spread)


WIDENED = ("scan", "cond", "switch", "solve", "gradients", "checkpoint", "fft", "product", "cumulative")


@pytest.mark.parametrize("name", WIDENED)
def test_the_reference_has_the_digits_of_float64(name: str) -> None:
    """A program without dtypes, and without literals that float32 rounds, gives what it gives at float64."""
    x = np.float32(np.random.default_rng(3).uniform(0.1, 1, size=(4, 3)))
    values = reference_of(PROGRAMS[name], x).values
    with jax.enable_x64(True):
        wide = jax.tree.leaves(jax.jit(PROGRAMS[name])(x.astype(np.float64)))
        for value, want in zip(values, wide, strict=True):
            np.testing.assert_allclose(value, np.asarray(want), rtol=1e-12, atol=1e-13)


def test_float64_is_kept_in_its_own_context() -> None:
    """The precision of the caller is as before, and float64 programs have a reference too."""
    with jax.enable_x64(True):
        x = jnp.ones(3) / 3
        reference = reference_of(jnp.sum, x)
        assert compare([jnp.sum(x)], [jnp.sum(x)], reference, exactness=NO_WORSE) == []
    assert jnp.ones(3).dtype == jnp.float32


def test_effects_are_not_repeated() -> None:
    """A print is left out of the second run; a ref cannot be, and the answer says so."""
    x = f32(1, 2)

    def prints(x):
        jax.debug.print("{x}", x=x)
        return x + 1

    assert reference_of(prints, x).values[0].tolist() == [2, 3]

    def writes(ref):
        ref[...] = ref[...] + 1

    def uses_a_ref(x):
        ref = jax.new_ref(x)
        writes(ref)
        return ref[...]

    closed = jax.make_jaxpr(uses_a_ref)(x)
    answer = float64_reference(closed.jaxpr, closed.consts, [x])
    assert isinstance(answer, NoReference)
    assert "effects" in answer.reason


def test_what_looks_at_bits_keeps_its_precision() -> None:
    """Random numbers and bitcasts run in their own types, and the reference says which did."""
    reference = reference_of(_keys, f32(1, 2))
    assert "bitcast_convert_type" in reference.kept
    assert reference_of(jnp.sin, f32(1)).kept == frozenset()
