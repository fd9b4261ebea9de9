"""What answers one question again and again while somebody looks."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class AskedLook(Protocol[T_co]):
    """Reads the answer to a question.

    Attributes:
        rest_s: seconds from the end of a read until the next one may begin.
    """

    rest_s: float

    async def read(self) -> T_co:
        """The answer as of now; raises errors of the product only."""
        ...

    async def close(self) -> None:
        """Releases what the reads have opened."""
        ...


class Once(Generic[T]):
    """A look that keeps nothing between two reads.

    Args:
        read: reads the answer.
        rest_s: as in `AskedLook`.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], rest_s: float) -> None:
        self._read = read
        self.rest_s = rest_s

    async def read(self) -> T:
        """See `AskedLook`."""
        return await self._read()

    async def close(self) -> None:
        """Nothing is open."""
