"""The contract of every pure machine below `pipeline.core`, as far as a driver relies on it.

*Source*: ARCHITECTURE.md, The machine contract.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

T_contra = TypeVar("T_contra", bound=float, contravariant=True)
E_co = TypeVar("E_co", covariant=True)


class Machine(Protocol[T_contra, E_co]):
    """Inputs in, effects out; everything that a machine knows of time is in its inputs.

    A machine is `Machine[int, E]` where its milliseconds are those of the wall clock, because
    records hold them, and `Machine[float, E]` where any clock that never goes back will do. `E` are
    its effects.

    The rules:

    1. Inputs are methods named for what happened, with `now_ms` where time matters.
    2. Each input returns its effects, frozen dataclasses, in the order in which a driver carries
       them out. The docstring of an effect says what is durable before it is carried out.
    3. `deadline_ms` is the next moment at which `tick` is needed. It may be early, never late, so a
       driver looks at it after each input that may have moved it forward.
    4. The result of an effect comes back as another input: late, twice or never.
    5. The same history of inputs gives the same effects: a machine has no clock, no randomness, no
       logging and no I/O.
    """

    @property
    def deadline_ms(self) -> float | None:
        """When `tick` is needed next, by the clock of `now_ms`; None: not before another input."""
        ...

    def tick(self, now_ms: T_contra) -> Sequence[E_co]:
        """Does what is due at `now_ms`; without effects where nothing is due."""
        ...
