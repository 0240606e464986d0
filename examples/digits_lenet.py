"""A LeNet that reads handwritten digits: 1,797 images of 8 x 8 pixels, which come with scikit-learn.

Convolutions, batch statistics, dropout; in training each image is moved by up to a pixel. Eight steps go in one call.

    python examples/digits_lenet.py
"""

import argparse

import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import aerogel as ag
from aerogel import nn


def lenet(key):
    keys = jax.random.split(key, 4)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding="same", key=keys[0]),
        nn.BatchNorm(16, num_spatial_dims=2),
        jax.nn.relu,
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding="same", key=keys[1]),
        nn.BatchNorm(32, num_spatial_dims=2),
        jax.nn.relu,
        nn.MaxPool2d(2),
        lambda x: x.reshape(*x.shape[:-3], 128),
        nn.Linear(128, 64, key=keys[2]),
        jax.nn.relu,
        nn.Dropout(0.3),
        nn.Linear(64, 10, key=keys[3]),
    )


def moved(images, rng):
    """Each image, moved by -1, 0 or 1 pixels both ways."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = rng.integers(0, 3, (2, len(images), 1)) + np.arange(8)
    return padded[np.arange(len(images))[:, None, None], 0, rows[:, :, None], columns[:, None, :]][:, None]


def batches(images, labels, epochs, size):
    for epoch in range(epochs):
        rng = np.random.default_rng(epoch)
        order = rng.permutation(len(images))
        for i in range(0, len(order) - size + 1, size):
            taken = order[i : i + size]
            yield {"images": moved(images[taken], rng), "labels": labels[taken]}


def loss(model, batch, key):
    scores = model(batch["images"], key=key)
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["labels"]).mean()


def step(state, batch):
    model, optimizer, key = state
    key, own = jax.random.split(key)
    value, model, optimizer = optimizer.step(loss)(model, batch, own)
    return (model, optimizer, key), value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]

    model = lenet(jax.random.key(0))
    steps = args.epochs * (len(train) // args.batch)
    optimizer = ag.Optimizer(optax.adamw(optax.cosine_onecycle_schedule(steps, 1e-2), weight_decay=1e-3)).init(model)
    state = model, optimizer, jax.random.key(1)

    found = batches(images[train], labels[train], args.epochs, args.batch)
    running = ag.loop(step, state, ag.prefetch(found), steps_per_call=8)
    for i, losses in enumerate(running):
        if i % 20 == 0:
            print(f"step {running.step:4d}  loss {float(losses.mean()):.4f}")

    reader = ag.inference(running.state[0])
    accuracy = ag.Accuracy().update(jax.jit(reader)(images[test]), labels[test])
    print(f"test accuracy {100 * float(accuracy.value()):.2f} %")


if __name__ == "__main__":
    main()
