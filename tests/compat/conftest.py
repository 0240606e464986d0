"""What the tests of other libraries' names share."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def quick_to_compile() -> Iterator[None]:
    """XLA optimises little, and so compiles in half the time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
