"""Calls that follow every change of the memory broker."""

from collections.abc import Callable


class Watchers:
    """The registered calls, in order of registration."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether any call is registered."""
        return bool(self._calls)

    def add(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Registers `changed` to be called after every change; returns a call that removes it."""
        self._calls.append(changed)
        return lambda: self._calls.remove(changed)

    def notify(self) -> None:
        """Makes all calls, after a change."""
        for changed in list(self._calls):
            changed()
