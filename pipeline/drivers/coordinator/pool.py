"""Keeps a client's pool of transactions opened ahead: refills it, releases unused transactions.

*Source*: docs/protocols C9.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from stilltide.pipeline.core.coordinator.pool import (
    POOLED_MS_MAX,
    Pooled,
    PoolEffect,
    Refill,
    ReleaseUnused,
    TransactionPool,
    Used,
)
from stilltide.pipeline.drivers.service.ask.requests import CoordinatorRequests
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.schemas.coordinator.transactions import Answer, Open, Opened, Registered, Release
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.service.envelopes import Refused
from stilltide.schemas.values import SubscriptionId, TopicPartition


class PoolDriver:
    """The pool of one client at its home coordinator.

    Args:
        requests: the client's requests to coordinators, open already.
        register: makes the registration of a partition, from an end offset that is known (C2).
        allow_compacted: whether the client writes to topics that compact (C18).

    Attributes:
        home: number of the coordinator that opens the client's next transactions.
    """

    def __init__(
        self,
        requests: CoordinatorRequests,
        register: Callable[[TopicPartition], Registered],
        *,
        allow_compacted: bool = False,
    ) -> None:
        self._requests = requests
        self._allow_compacted = allow_compacted
        self._register = register
        self.home = requests.home
        self._pool = TransactionPool()
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._tick)

    def take(self, timeout_ms: int, used: Used) -> Pooled | None:
        """A transaction that is registered with `used` and has its whole time-out left, or None."""
        return self._pool.take(timeout_ms, used, self._now_ms())

    def ending(
        self,
        timeout_ms: int,
        partitions: Iterable[TopicPartition],
        subscriptions: Iterable[SubscriptionId],
    ) -> None:
        """Refills the pool; call it before the end of a transaction is sent.

        The request for the successor is sent together with the end, and transactions that end in
        one turn of the event loop share a request for their successors.
        """
        self._pool.ending(timeout_ms, partitions, subscriptions, self._now_ms())
        self._arm()

    def renew(self) -> None:
        """Releases the unused transactions: their registrations are out of date (C13)."""
        pool, self._pool = self._pool, TransactionPool()
        self._run(self.home, pool, pool.close())

    def move_home(self) -> None:
        """Opens the next transactions at `Requests.home`, which may have changed (C14)."""
        if self._requests.home != self.home:
            self.renew()  # at the coordinator that has them
            self.home = self._requests.home

    def close(self) -> None:
        """Releases the unused transactions; call it before `Requests.close`."""
        self._alarm.cancel()
        self._run(self.home, self._pool, self._pool.close())

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _arm(self) -> None:
        self._alarm.arm(self._pool.deadline_ms, self._now_ms())

    def _tick(self) -> None:
        self._run(self.home, self._pool, self._pool.tick(self._now_ms()))
        self._arm()

    def _run(self, home: int, pool: TransactionPool, effects: Sequence[PoolEffect]) -> None:
        """Carries out effects of a pool at its coordinator, which is not the present home always.

        The answer to a refill may come after the client has moved to another coordinator.
        """
        for effect in effects:
            match effect:
                case Refill():
                    self._refill(home, pool, effect)
                case ReleaseUnused(sequences):
                    self._requests.tell(home, Release(sequences), _ignored)

    def _refill(self, home: int, pool: TransactionPool, refill: Refill) -> None:
        partitions = tuple(map(self._register, refill.partitions))

        def answered(answer: Answer | StilltideError) -> None:
            if isinstance(answer, Opened):
                registered = {one.data: one for one in partitions}
                opened = pool.refilled(refill.number, answer.first_sequence, registered)
                self._run(home, pool, opened)
                self._arm()
            else:
                pool.not_refilled(refill.number, refused=isinstance(answer, Refused))

        timeout_ms = refill.timeout_ms + POOLED_MS_MAX
        body = Open(
            timeout_ms,
            refill.count,
            partitions,
            refill.subscriptions,
            self._requests.name,
            self._allow_compacted,
        )
        # `tell` calls `answered` before any caller wakes up: a caller whose commit was answered
        # finds the successor that is answered next in the same batch (C9).
        self._requests.tell(home, body, answered)


def _ignored(_answer: Answer | StilltideError) -> None:
    """Nothing is to be done: a transaction that was not released ends by its time-out."""
