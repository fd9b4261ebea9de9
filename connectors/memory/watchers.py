"""Calls that follow changes of the memory broker."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain

from stilltide.schemas.values import TopicPartition


class Watch:
    """One registered call, which follows changes of the partitions that it names."""

    def __init__(self, watchers: "Watchers", changed: Callable[[], None]) -> None:
        self.changed = changed
        self._watchers = watchers
        self._partitions: frozenset[TopicPartition] = frozenset()

    def follow(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the named partitions; a change of the whole broker is followed in any case."""
        self._watchers.replace(self, self._partitions, named := frozenset(partitions))
        self._partitions = named

    def end(self) -> None:
        """Removes the call."""
        self.follow(())
        self._watchers.remove(self)


class Watchers:
    """The registered calls, in order of registration."""

    def __init__(self) -> None:
        self._watches: dict[Watch, None] = {}
        self._of: defaultdict[TopicPartition, dict[Watch, None]] = defaultdict(dict)

    def __bool__(self) -> bool:
        """Whether any call is registered."""
        return bool(self._watches)

    def add(self, changed: Callable[[], None]) -> Watch:
        """Registers `changed` to be called after every change that the watch follows."""
        watch = Watch(self, changed)
        self._watches[watch] = None
        return watch

    def notify(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Makes the calls that follow these partitions; None: all calls."""
        if partitions is None:
            watches = list(self._watches)
        else:
            followed = [watches for data in partitions if (watches := self._of.get(data))]
            watches = list(followed[0] if len(followed) == 1 else dict.fromkeys(chain(*followed)))
        for watch in watches:
            watch.changed()

    def replace(
        self,
        watch: Watch,
        before: frozenset[TopicPartition],
        after: frozenset[TopicPartition],
    ) -> None:
        """Follows other partitions with a watch."""
        for data in before - after:
            del self._of[data][watch]
        for data in after - before:
            self._of[data][watch] = None

    def remove(self, watch: Watch) -> None:
        """Removes a watch that follows no partition any more."""
        self._watches.pop(watch, None)
