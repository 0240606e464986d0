"""Answers that are kept for the next one who asks."""

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Answers by key, at most so many: when there are more, all go. Threads share one, without a lock.

    A lock that another thread holds would stay held in a process that is forked meanwhile.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._answers: dict[Hashable, T] = {}

    def get(self, key: Hashable) -> T | None:
        """The answer, or None."""
        return self._answers.get(key)

    def clear(self) -> None:
        """Forgets all."""
        self._answers = {}

    def put(self, key: Hashable, answer: T) -> T:
        """Keeps an answer, and returns it."""
        if len(self._answers) >= self.most and key not in self._answers:
            self.clear()
        self._answers[key] = answer
        return answer
