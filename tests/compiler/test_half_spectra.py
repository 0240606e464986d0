"""Half spectra: which transforms are made by halves, in which spellings, and which are left."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.excerpts.conjugate_symmetry import symmetric_half, transform
from aerogel.compiler.program import inner_levels
from benchmarks._case import normal

fft, ifft = jnp.fft.fft, jnp.fft.ifft
Formula = Callable[..., Any]
X, K = normal(0, 16, 4096), normal(1, 4096)
Z = normal(2, 256, 256)
FILTER = np.asarray(normal(3, 256, 256))
COUNTED = jnp.fft.fftfreq  # of the size, under a trace


def transforms(jaxpr: Any) -> tuple[int, int]:
    """How many transforms of complex numbers a program has, and how many others."""
    own = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "fft"]
    whole = sum(transform(eqn) is not None for eqn in own)
    counts = [(whole, len(own) - whole), *(transforms(inner) for inner in inner_levels(jaxpr))]
    return sum(a for a, _ in counts), sum(b for _, b in counts)


def convolved(x: Any, k: Any) -> Any:
    """A circular convolution."""
    return ifft(fft(x) * fft(k)).real


def along_columns(x: Any, k: Any) -> Any:
    """The same along the first axis."""
    return ifft(fft(x.T, axis=0) * fft(k)[:, None], axis=0).real


def in_a_step(x: Any, k: Any) -> Any:
    """A filter in each step of a loop."""
    return lax.scan(lambda c, _: (convolved(c, k) / 100, None), x, None, length=3)[0]


def poisson(z: Any) -> Any:
    """A solver that divides by the squares of frequencies."""
    kx, ky = jnp.meshgrid(COUNTED(256), COUNTED(256), indexing="ij")
    squares = kx**2 + ky**2
    return jnp.real(jnp.fft.ifftn(jnp.fft.fftn(z) / jnp.where(squares == 0, 1.0, squares)))


def vorticity(z: Any) -> Any:
    """How a vorticity is carried: derivatives of it and of what Poisson's equation makes of it, along both axes."""
    kx, ky = jnp.meshgrid(COUNTED(256), COUNTED(256), indexing="ij")
    squares = kx**2 + ky**2
    w = jnp.fft.fft2(z)
    stream = w / jnp.where(squares == 0, 1.0, squares)
    one, other = jnp.fft.ifft2(1j * ky * stream).real, jnp.fft.ifft2(-1j * kx * stream).real
    return one * jnp.fft.ifft2(1j * kx * w).real + other * jnp.fft.ifft2(1j * ky * w).real


def advected(x: Any) -> Any:
    """A derivative in each step of a loop, of frequencies that are made before it."""
    k = 1j * COUNTED(4096)
    return lax.scan(lambda c, _: (c - ifft(k * fft(c)).real / 10, None), x, None, length=3)[0]


def both(x: Any) -> Any:
    """A derivative and a second one of one spectrum."""
    s = fft(x)
    return ifft(1j * COUNTED(4096) * s).real - ifft(COUNTED(4096) ** 2 * s).real


TURN = np.exp(1j * np.arange(4096)).astype(np.complex64)
SPELLINGS: dict[str, tuple[Formula, tuple[Any, ...]]] = {
    "a method": (convolved, (X, K)),
    "jnp.real, the other way": (lambda x, k: jnp.real(ifft(fft(k) * fft(x))), (X, K)),
    "under vmap": (lambda x, k: jax.vmap(lambda row: convolved(row, k))(x), (X, K)),
    "columns": (along_columns, (X, K)),
    "complex beforehand": (lambda x, k: convolved(x.astype(jnp.complex64), lax.complex(k, jnp.zeros_like(k))), (X, K)),
    "padded": (lambda x, k: ifft(fft(x, 8192) * fft(k, 8192)).real[:, :4096], (X, K)),
    "a correlation": (lambda x, k: ifft(fft(x) * jnp.conj(fft(k))).real, (X, K)),
    "with itself": (lambda x, k: ifft(fft(x) * fft(x).conj()).real + k, (X, K)),
    "powers": (lambda x, k: ifft(abs(fft(x)) ** 2 / (1 + fft(k).real ** 2)).real, (X, K)),
    "a filter of frequencies": (lambda x, k: ifft(fft(x) * jnp.exp(-abs(COUNTED(4096)))).real * k, (X, K)),
    "matrices": (lambda z: jnp.fft.ifft2(jnp.fft.fft2(z) * jnp.fft.fft2(z.T)).real, (Z,)),
    "Poisson's equation": (poisson, (Z,)),
    "a product over channels": (
        lambda x, k: ifft(jnp.einsum("ck,ock->ok", fft(x), fft(x[:, None] * k))).real,
        (X, K),
    ),
    "a loop": (in_a_step, (X, K)),
    "the other kind": (lambda x, k: fft(ifft(x) * ifft(k)).real, (X, K)),
    "a derivative": (lambda x: ifft(1j * COUNTED(4096) * fft(x)).real, (X,)),
    "a derivative, 1j last": (lambda x: jnp.real(ifft(1j * (COUNTED(4096) * fft(x)))), (X,)),
    "a derivative, 1j first": (lambda x: ifft(COUNTED(4096) * (1j * fft(x))).real, (X,)),
    "a derivative of each": (jax.vmap(lambda x: ifft(2j * jnp.pi * COUNTED(4096) * fft(x)).real), (X,)),
    "by parts": (lambda x: ifft(lax.complex(jnp.zeros(4096), COUNTED(4096)) * fft(x)).real, (X,)),
    "two derivatives": (both, (X,)),
    "a vorticity": (vorticity, (Z,)),
    "advected": (advected, (X,)),
    "a phase": (lambda x: ifft(fft(x) * TURN).real, (X,)),
    "an analytic signal": (lambda x: ifft(fft(x) * jnp.where(COUNTED(4096) > 0, 2.0, 0.0)).real, (X,)),
    "Hilbert's transform": (lambda x: ifft(-1j * jnp.sign(COUNTED(4096)) * fft(x)).real, (X,)),
    "a mask of the first half": (lambda x: ifft(fft(x) * (jnp.arange(4096) < 9)).real, (X,)),
    "a filter of both axes": (lambda z: jnp.fft.ifft2(jnp.fft.fft2(z) * FILTER).real, (Z,)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    """No whole spectrum is left, in the value and in the gradient, and both are as near to float64 as before."""
    f, args = SPELLINGS[name]
    gradient = jax.grad(lambda *a: (f(*a) ** 2).sum(), tuple(range(len(args))))
    for g in [f] if name in ("a loop", "advected") else [f, gradient]:
        before, after = (transforms(jax.make_jaxpr(h)(*args).jaxpr) for h in (g, ag.optimize(g)))
        assert before[0] >= 2
        assert before[1] == 0
        assert after[0] == 0
        assert after[1] >= 2
        agrees(g, args)


def agrees(f: Formula, args: tuple[Any, ...]) -> None:
    """Within twice the error of plain JAX, and a few units in the last place of the largest."""
    plain, ours = jax.jit(f)(*args), jax.jit(ag.optimize(f))(*args)
    with jax.enable_x64(True):
        truth = jax.jit(f)(*(jnp.asarray(np.asarray(a), np.float64) for a in args))
    for a, b, t in zip(*map(jax.tree.leaves, (plain, ours, truth)), strict=True):
        assert a.dtype == b.dtype
        error, size = float(np.abs(a - np.asarray(t)).max()), float(np.abs(t).max())
        assert float(np.abs(b - np.asarray(t)).max()) <= 2 * error + 1e-6 * size


NEAR: dict[str, tuple[Formula, tuple[Any, ...]]] = {
    "a modulus": (lambda x, k: abs(ifft(fft(x) * fft(k))), (X, K)),
    "the imaginary part": (lambda x, k: ifft(fft(x) * fft(k)).imag, (X, K)),
    "complex numbers": (lambda x, k: ifft(fft(x + 1j * k) * fft(k)).real, (X, K)),
    "a spectrum that is a result": (lambda x, k: (convolved(x, k), fft(x)), (X, K)),
    "an unknown filter, squared": (lambda x, k: ifft((fft(x) * k) ** 2).real, (X, K)),
    "an unknown filter, twice": (lambda x, k: ifft(fft(x) * k * (k + fft(x))).real, (X, K)),
    "an unknown divisor": (lambda x, k: ifft(fft(x) / k).real, (X, K)),
    "two signs": (lambda x, k: (lambda b: ifft(b).real - ifft(1j * b).real)(k[0] * COUNTED(4096) * fft(x)), (X, K)),
    "turned": (lambda x, k: ifft(fft(x)[:, ::-1] * fft(k)).real, (X, K)),
    "shifted": (lambda x, k: ifft(jnp.roll(fft(x), 1, 1) * fft(k)).real, (X, K)),
    "another axis": (lambda z: ifft(fft(z).T).real, (Z,)),
    "cumulated": (lambda x, k: ifft(jnp.cumsum(fft(x), 1) * fft(k)).real, (X, K)),
    "summed over frequencies": (lambda x, k: ifft(fft(x) * fft(k).sum()).real, (X, K)),
    "few": (convolved, (X[:2], K)),
    "an odd length": (convolved, (normal(0, 20, 4095), K[1:])),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name: str) -> None:
    """What is no spectrum of real numbers, is read otherwise, or is faster as it is, is left whole."""
    f, args = NEAR[name]
    found: list[Any] = []
    after = transforms(jax.make_jaxpr(ag.optimize(f, on_report=found.append))(*args).jaxpr)
    assert after == transforms(jax.make_jaxpr(f)(*args).jaxpr)
    assert after[0] >= 2
    assert "half-spectra" not in {d.rule for d in found[0].fired}
    if name in ("few", "an odd length"):
        (decision,) = [d for d in found[0].decisions if d.rule == "half-spectra"]
        assert name.split()[-1] in decision.reason
    strict = ag.optimize(convolved, numerics="strict")
    assert transforms(jax.make_jaxpr(strict)(X, K).jaxpr) == (3, 0)


# What may be done to a spectrum `s` with another one, `t`, and what it is with real numbers only: half of these keep
# the symmetry.
STEPS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda s, t: s * t,
    lambda s, t: s - t.conj(),
    lambda s, t: s / (2 + abs(t) ** 2),
    lambda s, t: s + t.real,
    lambda s, t: jnp.where(abs(t) > 1, s, t),
    lambda s, t: s * jnp.cos(jnp.fft.fftfreq(s.shape[-1])),
    lambda s, t: s**2 + t.mean(0),
    lambda s, t: s * jnp.arange(s.shape[-1]),
    lambda s, t: s * 1j * jnp.fft.fftfreq(s.shape[-1]),
    lambda s, t: 1j * (s.T * jnp.fft.fftfreq(s.shape[-1])[:, None]).T,
    lambda s, t: s - t * jnp.exp(1j * jnp.arange(s.shape[-1])),
    lambda s, t: s * jnp.where(jnp.arange(s.shape[-1]) < 4, t.real.sum(), 1.0),
    lambda s, t: s + 1j * t,
    lambda s, t: s.at[:, 3].set(1.0),
    lambda s, t: s + t.imag,
    lambda s, t: s[:, ::-1] * t,
    lambda s, t: s * jnp.sin(jnp.fft.fftfreq(s.shape[-1])),
    lambda s, t: jnp.tril(s) + t,
)


def test_an_unknown_filter() -> None:
    """That is an argument: its symmetric half is made, and the value is made by half."""
    f = lambda x, k: ifft(fft(x) * jnp.exp(1j * k)).real  # noqa: E731
    assert transforms(jax.make_jaxpr(f)(X, K).jaxpr) == (2, 0)
    assert transforms(jax.make_jaxpr(ag.optimize(f))(X, K).jaxpr) == (0, 2)
    agrees(f, (X, K))


@pytest.mark.parametrize("sign", [1, -1])
def test_symmetric_halves(sign: int) -> None:
    """By their definition, for each number of axes, lengths of one among them."""
    z = np.asarray(normal(4, 3, 4, 5, 1)) + 1j * np.asarray(normal(5, 3, 4, 5, 1))
    for dims in ((1,), (2, None), (0, 1, 2), (3,), (None,)):
        there = [d for d in dims if d is not None]
        want = (z + sign * np.conj(np.roll(np.flip(z, there), 1, there))) / 2
        np.testing.assert_allclose(symmetric_half(jnp.asarray(z), dims, sign), want, rtol=1e-6)
    real = np.asarray(normal(6, 6))
    want = (real + sign * np.roll(real[::-1], 1)) / 2
    np.testing.assert_allclose(symmetric_half(jnp.asarray(real), (0,), sign), want, rtol=1e-6)


def test_random_programs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of steps that keep the symmetry, and that break it: both are as they were."""
    from aerogel.compiler.passes import half_spectra

    monkeypatch.setattr(half_spectra, "FEWEST", 1)
    monkeypatch.setattr(half_spectra, "MARGIN", 10.0)
    drawn, fired, left = np.random.default_rng(0), 0, 0
    x, y = np.asarray(normal(0, 5, 12)) / 4, np.asarray(normal(1, 5, 12)) / 4
    for _ in range(60):
        steps = [STEPS[k] for k in drawn.integers(0, len(STEPS) if drawn.random() < 0.5 else 7, 3)]
        back = ifft if drawn.random() < 0.7 else fft

        def f(x: Any, y: Any, steps: Any = steps, back: Any = back) -> Any:
            s, t = fft(x), ifft(y) if back is fft else fft(y)
            for k, step in enumerate(steps):
                s, t = (step(s, t), t) if k % 2 else (step(t, s), s)
            return back(s + t).real

        found: list[Any] = []
        ours = ag.optimize(f, on_report=found.append)(x, y)
        with jax.enable_x64(True):
            truth = np.asarray(f(x.astype(np.float64), y.astype(np.float64)))
        scale = float(np.abs(truth).max()) + 1
        assert float(np.abs(np.asarray(ours) - truth).max()) <= 1e-5 * scale
        acted = any(d.rule == "half-spectra" for d in found[0].fired)
        fired, left = fired + acted, left + (not acted)
    assert fired >= 15
    assert left >= 10


LONG = np.random.default_rng(0).normal(size=(8, 8192)).astype(np.float32)


def power(x: Any) -> Any:
    """A power spectrum, of which the half above zero is wanted."""
    return jnp.abs(jnp.fft.fft(x))[:, :4097] ** 2


READ: dict[str, Callable[..., Any]] = {
    "power": power,
    "half, then its size": lambda x: jnp.abs(jnp.fft.fft(x)[:, :4096]),
    "without the mean, in decibels": lambda x: jnp.log(jnp.abs(jnp.fft.fft(x * jnp.hanning(8192)))[..., 1:4096] + 1),
    "a product": lambda x: (lambda z: (z * jnp.conj(z)).real[:, :2000])(jnp.fft.fft(x)),
    "several parts": lambda x: (lambda z: (jnp.abs(z[:, :100]), z[:, 50:3000].real))(jnp.fft.fft(x)),
    "two axes": lambda x: jnp.abs(jnp.fft.fft2(x.reshape(4, 128, 128)))[:, :, :65],
    "backwards": lambda x: jnp.abs(jnp.fft.ifft(x))[:, :100],
    "of each": jax.vmap(lambda x: jnp.abs(jnp.fft.fft(x))[:4097]),
}
WHOLE: dict[str, Callable[..., Any]] = {
    "one place more": lambda x: jnp.abs(jnp.fft.fft(x))[:, :4098],
    "the other axis": lambda x: jnp.abs(jnp.fft.fft2(x.reshape(4, 128, 128)))[:, :65],
    "the upper half": lambda x: jnp.abs(jnp.fft.fft(x))[:, 4096:],
    "all is read, too": lambda x: (lambda z: (z[:, :100].real, jnp.sum(jnp.abs(z))))(jnp.fft.fft(x)),
    "complex numbers": lambda x: jnp.abs(jnp.fft.fft(x * 1j * x + x))[:, :4097],
    "few numbers": lambda x: jnp.abs(jnp.fft.fft(x[0]))[:4097],
    "an odd length": lambda x: jnp.abs(jnp.fft.fft(x.reshape(-1)[:65535]))[:100],
}


def kinds(f: Callable[..., Any]) -> set[Any]:
    """The kinds of transform that a program makes of `LONG`."""
    eqns = jax.make_jaxpr(f)(LONG).jaxpr.eqns
    return {eqn.params["fft_type"] for eqn in eqns if eqn.primitive.name == "fft"}


@pytest.mark.parametrize("name", READ)
def test_of_a_spectrum_that_is_read_to_the_half_no_more_is_made(name: str) -> None:
    """By a transform of real numbers; gradients are those of the program as it stood."""
    f = READ[name]
    made = ag.optimize(f)
    assert kinds(made) == {lax.FftType.RFFT}
    for got, want in zip(jax.tree.leaves(jax.jit(made)(LONG)), jax.tree.leaves(jax.jit(f)(LONG)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))
    got, want = (
        jax.grad(lambda x, g=g: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(g(x))))(LONG / 100) for g in (made, f)
    )
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max()))


@pytest.mark.parametrize("name", WHOLE)
def test_other_spectra_stay_whole(name: str) -> None:
    """More than half is read, or it would be slower, or there is no half."""
    f = WHOLE[name]
    assert lax.FftType.RFFT not in kinds(ag.optimize(f))
