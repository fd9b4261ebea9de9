"""Chance: its interface, and that of the operating system.

*Source*: ARCHITECTURE.md, The machine contract, rule 5. A process that is given another clock and
another chance does the same again.
"""

import random
import secrets
from typing import Protocol


class Chance(Protocol):
    """Where ids, secrets and random delays come from."""

    def token(self, byte_count: int) -> bytes:
        """Bytes that nobody can guess, and that no other call returns."""
        ...

    def between(self, low: float, high: float) -> float:
        """A number in `[low, high]`; no secret."""
        ...


class SystemChance:
    """`Chance` of real processes."""

    def token(self, byte_count: int) -> bytes:
        """Bytes of the operating system's generator of secrets."""
        return secrets.token_bytes(byte_count)

    def between(self, low: float, high: float) -> float:
        """A number in `[low, high]`; no secret."""
        return random.uniform(low, high)  # noqa: S311 - no secret
