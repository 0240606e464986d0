"""The same functions in PyTorch, by the names of their rows. Imported only where PyTorch is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as nn

from ._loops import STEP
from ._mooncake import HIGH, LOW


@dataclass(frozen=True)
class Form:
    """A row's function of tensors.

    Attributes:
        compiles: whether `torch.compile` is measured too: it unrolls loops, which takes minutes.
        args: from the arguments of the row, where those of the function differ.
    """

    f: Callable
    compiles: bool = True
    args: Callable[..., tuple[np.ndarray, ...]] = lambda *args: args


def value_and_grad(form: Form, wrt: tuple[int, ...], args: tuple[np.ndarray, ...]) -> Callable[[], object]:
    """Computes value and gradients, eagerly."""
    tensors = [torch.from_numpy(np.array(x)) for x in form.args(*args)]
    chosen = [tensors[i].requires_grad_() for i in wrt]

    def call():
        value = form.f(*tensors)
        return value, torch.autograd.grad(value, chosen)

    return call


def compiled(form: Form, wrt: tuple[int, ...], args: tuple[np.ndarray, ...]) -> Callable[[], object]:
    """The same, compiled as one program."""
    torch.compiler.reset()
    tensors = [torch.from_numpy(np.array(x)) for x in form.args(*args)]
    made = torch.compile(torch.func.grad_and_value(form.f, argnums=wrt))

    def call():
        grads, value = made(*tensors)
        return value, grads

    return call


def arrays(out: object) -> tuple[np.ndarray, ...]:
    """Value and gradients as NumPy's."""
    value, grads = out
    return value.detach().numpy(), *(x.detach().numpy() for x in grads)


def sum_loop(x):
    y = torch.zeros((), dtype=x.dtype)
    for entry in x:
        y = y + entry
    return y


def sum_sin_loop(x):
    y = torch.zeros((), dtype=x.dtype)
    for entry in x:
        y = y + torch.sin(entry)
    return y


def sin_cos_exp(x):
    return torch.sin(torch.cos(torch.exp(x)))


def naive_map(x):
    return torch.stack([sin_cos_exp(entry) for entry in x.ravel()]).sum()


def simple_mlp(w2, w1, y, x):
    hidden = w1 @ x
    return ((y - w2 @ (hidden * (hidden >= 0))) ** 2).sum()


def gp_lml(x, y, s):
    squares = (x[:, None] - x[None]) ** 2
    factor = torch.linalg.cholesky(torch.exp(-0.5 * squares) + s * torch.eye(len(x), dtype=x.dtype))
    white = torch.linalg.solve_triangular(factor, y[:, None], upper=False)[:, 0]
    return -0.5 * white @ white - torch.log(torch.diagonal(factor)).sum() - 0.5 * len(x) * math.log(2 * math.pi)


def turing_broadcast(theta, data):
    inside = torch.sigmoid(theta)
    params = LOW + (HIGH - LOW) * inside
    mean, deviation = params[0], params[1]
    mass = 0.5 * (math.erf((HIGH - 1) / 8**0.5) - math.erf((LOW - 1) / 8**0.5))
    priors = -(((params - 1) / 2) ** 2) / 2 - math.log(2 * math.sqrt(2 * math.pi) * mass)
    jacobian = torch.log((HIGH - LOW) * inside * (1 - inside))
    logs = torch.log(data)
    terms = -((logs - mean) ** 2) / (2 * deviation**2) - torch.log(deviation) - 0.5 * math.log(2 * math.pi) - logs
    return (priors + jacobian).sum() + terms.sum()


def large_single_block(x):
    value = x[0]
    for _ in range(400):
        value = value * x[1]
    return value


def mlp(w1, b1, w2, b2, images):
    return ((torch.tanh(images.reshape(len(images), -1) @ w1 + b1) @ w2 + b2) ** 2).sum()


def lenet(k1, c1, k2, c2, w1, b1, w2, b2, w3, b3, images):
    features = nn.max_pool2d(torch.relu(nn.conv2d(images, k1, c1)), 2)
    features = nn.max_pool2d(torch.relu(nn.conv2d(features, k2, c2)), 2).reshape(len(images), -1)
    hidden = torch.relu(torch.relu(features @ w1 + b1) @ w2 + b2)
    return ((hidden @ w3 + b3) ** 2).sum()


def recurrent(layer: Callable, states: int) -> Callable:
    """One layer of PyTorch's own, which takes two biases and its parameters transposed."""

    def f(w, u, b, b_state, xs):
        zeros = torch.zeros(1, xs.shape[1], u.shape[1])
        first = (zeros,) * states if states > 1 else zeros
        return (layer(xs, first, [w, u, b, b_state], True, 1, 0.0, True, False, False)[0] ** 2).sum()

    return f


def transposed(w, u, b, *rest):
    """Parameters as PyTorch keeps them; what is differentiated by comes first."""
    b_state, xs = rest if len(rest) == 2 else (np.zeros_like(b), *rest)
    return np.ascontiguousarray(w.T), np.ascontiguousarray(u.T), b, b_state, xs


def force(q, k):
    return -k * torch.sin(q)


def leapfrog(q, p, k):
    for _ in range(100):
        p = p + 0.5 * STEP * force(q, k)
        q = q + STEP * p
        p = p + 0.5 * STEP * force(q, k)
    return (q**2 + p**2).sum()


def rk4(q, p, k):
    for _ in range(100):
        q1, p1 = p, force(q, k)
        q2, p2 = p + STEP / 2 * p1, force(q + STEP / 2 * q1, k)
        q3, p3 = p + STEP / 2 * p2, force(q + STEP / 2 * q2, k)
        q4, p4 = p + STEP * p3, force(q + STEP * q3, k)
        q, p = q + STEP * (q1 + 2 * q2 + 2 * q3 + q4) / 6, p + STEP * (p1 + 2 * p2 + 2 * p3 + p4) / 6
    return (q**2 + p**2).sum()


def laplacian(u):
    return torch.roll(u, 1) - 2 * u + torch.roll(u, -1)


def heat(u, rate):
    for _ in range(200):
        u = u + rate * laplacian(u)
    return (u**2).sum()


def heat_reaction(u, rate):
    for _ in range(200):
        u = u + rate * (laplacian(u) + u * (1 - u))
    return (u**2).sum()


FORMS = {
    "sum_1000": Form(torch.sum),
    "_sum_1000": Form(sum_loop, compiles=False),
    "sum_sin_1000": Form(lambda x: torch.sin(x).sum()),
    "_sum_sin_1000": Form(sum_sin_loop, compiles=False),
    "kron_sum": Form(lambda x, y: torch.kron(x, y).sum()),
    "kron_view_sum": Form(lambda x, y: torch.kron(x[:20, :20], torch.triu(y)).sum()),
    "naive_map_sin_cos_exp": Form(naive_map, compiles=False),
    "map_sin_cos_exp": Form(lambda x: torch.vmap(sin_cos_exp)(x.ravel()).sum()),
    "broadcast_sin_cos_exp": Form(lambda x: sin_cos_exp(x).sum()),
    "simple_mlp": Form(simple_mlp),
    "gp_lml": Form(gp_lml),
    "turing_broadcast": Form(turing_broadcast),
    "large_single_block": Form(large_single_block),
    "sum_abs2": Form(lambda x: (x**2).sum()),
    "sum_abs2, prepared": Form(lambda x: (x**2).sum()),
    "40 MB, prepared": Form(lambda x: (x**2).sum()),
    "sum_atan": Form(lambda x: torch.atan(x).sum()),
    "sum_sin": Form(lambda x: torch.sin(x).sum()),
    "mlp": Form(mlp),
    "mlp_dx": Form(mlp),
    "lenet": Form(lenet),
    "lenet_dx": Form(lenet),
    "lstm T100 B32 H128": Form(recurrent(torch.lstm, 2), compiles=False, args=transposed),
    "rnn T500 B1 H256": Form(recurrent(torch.rnn_tanh, 1), compiles=False, args=transposed),
    "lstm T200 B1 H256": Form(recurrent(torch.lstm, 2), compiles=False, args=transposed),
    "gru T200 B4 H256": Form(recurrent(torch.gru, 1), compiles=False, args=transposed),
    "leapfrog": Form(leapfrog, compiles=False),
    "rk4": Form(rk4, compiles=False),
    "heat": Form(heat, compiles=False),
    "heat with u(1-u)": Form(heat_reaction, compiles=False),
}
