"""What is tested here are passes: no rules run beside them, so that what a pass wrote can be looked at."""

from collections.abc import Iterator

import pytest

import aerogel as ag


@pytest.fixture(autouse=True)
def no_rules() -> Iterator[None]:
    """Programs whose test does not ask for rules get none."""
    with ag.rules.use(()):
        yield
