"""Who wants to know of changes of the memory broker."""

from collections.abc import Callable


class Watchers:
    """Calls that every change makes."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether anybody watches."""
        return bool(self._calls)

    def add(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` after every change; returns the call that ends that."""
        self._calls.append(changed)
        return lambda: self._calls.remove(changed)

    def notify(self) -> None:
        """Something has changed."""
        for changed in list(self._calls):
            changed()
