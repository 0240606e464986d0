"""What the contract promises is tried with JAX's own checks on: each program that is traced, inner ones at every level.

That takes half of a trace, so other tests go without; the pipeline checks each program that a pass made.
"""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    """JAX's checks are on."""
    with jax.enable_checks(True):
        yield
