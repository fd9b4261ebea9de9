"""The contract between every pure machine in `pipeline.core` and its driver.

*Source*: ARCHITECTURE.md, The machine contract.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

T_contra = TypeVar("T_contra", bound=float, contravariant=True)
E_co = TypeVar("E_co", covariant=True)


class Machine(Protocol[T_contra, E_co]):
    """Inputs in, effects out; a machine learns the time only from its inputs.

    The milliseconds of a machine are those of a clock that never goes back, `Machine[int, E]` of
    `Clock.monotonic_ms`. A time that is stored, or was, is wall time, and the driver converts it
    (docs/internals/time.md). `E` is the union of its effects.

    The rules:

    1. Inputs are methods named for what happened, with `now_ms` where time matters.
    2. An input that has effects returns them, frozen dataclasses, in the order in which a driver
       carries them out. The docstring of an effect says what is durable before it is carried out.
    3. `deadline_ms` is the next moment at which `tick` is needed. The deadline may be early, never
       late, and a driver reads it again after each input.
    4. The result of an effect comes back as another input, which may come late, twice or never.
    5. The same history of inputs gives the same effects: a machine has no clock, no randomness, no
       logging and no I/O.
    """

    @property
    def deadline_ms(self) -> float | None:
        """When to call `tick` next, by the clock of `now_ms`; None: not before another input."""
        ...

    def tick(self, now_ms: T_contra) -> Sequence[E_co]:
        """Does what is due at `now_ms`; returns no effects when nothing is due."""
        ...
