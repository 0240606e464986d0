"""Files: what is loaded has the type of `like`."""

from pathlib import Path
from typing import assert_type

import jax
from values import X

import aerogel as ag


class Linear(ag.Module):
    weight: jax.Array


model = Linear(X)
ag.save("model.safetensors", model)
ag.save(Path("model.safetensors"), {"model": model})
assert_type(ag.load("model.safetensors", like=model), Linear)
assert_type(ag.load(Path("model"), like=model, strict=False), Linear)
ag.load(3, like=model)  # pyright: ignore[reportArgumentType, reportCallIssue]
try:
    ag.load("model.safetensors", like=model)
except ag.MismatchError as error:
    text: str = str(error)
