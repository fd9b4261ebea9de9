"""A client's pool of transactions opened ahead, so that a transaction costs one round trip.

*Source*: docs/protocols C9. Each transaction that ends, or is prepared, asks for its successor, so
that callers which begin one transaction after another each find one in the pool, and a burst leaves
at most as many behind as it used. Transactions that nobody takes grow old and are released.

*Invariants*:
- a transaction is taken at most once, and never after its release,
- a transaction that is taken has its whole time-out left: the coordinator is asked for a time-out
  longer by `POOLED_MS_MAX`, and that long after the request the transaction is not taken any more,
- a transaction that is taken is registered with the partition of its first record, or with the
  subscription of its first acknowledgement,
- at most `POOLED_MAX` transactions are in stock or requested, each for at most `POOLED_MS_MAX`.

Refuses to pool for a client that begins transactions less often than every `POOLED_MS_MAX`, that
writes to more than `PARTITIONS_MAX` partitions, or whose time-outs, made longer, are refused; and
to register subscriptions ahead for a client that acknowledges in more than `SUBSCRIPTIONS_MAX`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from stilltide.schemas.coordinator.transactions import Registered
from stilltide.schemas.values import SubscriptionId, TopicPartition

U = TypeVar("U", TopicPartition, SubscriptionId)

POOLED_MAX = 1000
"""Pooled transactions of a client; also how many one request may open or release."""

POOLED_MS_MAX = 1000
"""How long a transaction may stay in the pool, from the request that opens it."""

PARTITIONS_MAX = 16
"""Partitions registered ahead; barriers and abort markers name each registered partition."""

SUBSCRIPTIONS_MAX = 32
"""Subscriptions registered ahead; a transaction whose client dies is settled in each of them."""

USED_MS = 10_000
"""Partitions and subscriptions not used for this long are not registered ahead."""

Used = TopicPartition | SubscriptionId
"""What a transaction is registered with: a partition to write to, or a subscription."""


@dataclass(frozen=True, slots=True)
class Refill:
    """Effect: open `count` transactions that are registered with these.

    The driver asks the coordinator for the time-out `timeout_ms + POOLED_MS_MAX`, and reports
    `refilled` or `not_refilled`.
    """

    number: int
    timeout_ms: int
    count: int
    partitions: tuple[TopicPartition, ...]
    subscriptions: tuple[SubscriptionId, ...]


@dataclass(frozen=True, slots=True)
class ReleaseUnused:
    """Effect: release these transactions; may fail, since their time-out ends them too."""

    sequences: tuple[int, ...]


PoolEffect = Refill | ReleaseUnused


class Pooled(NamedTuple):
    """A transaction in the pool: may be taken before `until_ms`, registered with these."""

    until_ms: float
    sequence: int
    registered: Mapping[TopicPartition, Registered]
    subscriptions: frozenset[SubscriptionId]

    def is_registered_with(self, used: Used) -> bool:
        """Whether the transaction is registered with this partition or subscription."""
        return used in self.registered or used in self.subscriptions


class TransactionPool:
    """The pool of one client at one coordinator (C9)."""

    def __init__(self) -> None:
        self._stock: dict[int, list[Pooled]] = {}  # by time-out; the oldest first
        self._on_the_way: dict[int, tuple[Refill, float]] = {}  # with the time of the request
        self._wanted: dict[int, int] = {}  # successors by time-out
        self._held = 0  # in stock, on the way and wanted
        self._number = 0
        # When each was last used; the least recently used first.
        self._partitions: dict[TopicPartition, float] = {}
        self._subscriptions: dict[SubscriptionId, float] = {}
        self._began_ms = -math.inf
        self._busy = False
        self._timeout_ms_max = math.inf
        self._closed = False

    @property
    def deadline_ms(self) -> float | None:
        """When `tick` is due: at once while successors are wanted, else when one grows old."""
        if self._wanted:
            return -math.inf
        return min((stock[0].until_ms for stock in self._stock.values()), default=None)

    def take(self, timeout_ms: int, used: Used, now_ms: float) -> Pooled | None:
        """A pooled transaction that fits; None: the caller opens one.

        The newest one is taken, so that transactions beyond the demand grow old.
        """
        self._busy = now_ms - self._began_ms <= POOLED_MS_MAX
        self._began_ms = now_ms
        stock = self._stock.get(timeout_ms)
        if stock is None or stock[-1].until_ms <= now_ms:
            return None
        if not stock[-1].is_registered_with(used):
            return None
        taken = stock.pop()
        if not stock:
            del self._stock[timeout_ms]
        self._held -= 1
        return taken

    def ending(
        self,
        timeout_ms: int,
        partitions: Iterable[TopicPartition],
        subscriptions: Iterable[SubscriptionId],
        now_ms: float,
    ) -> None:
        """A transaction that used these ends, or is prepared: its successor is requested."""
        _note(self._partitions, partitions, now_ms, PARTITIONS_MAX + 1)
        _note(self._subscriptions, subscriptions, now_ms, SUBSCRIPTIONS_MAX + 1)
        if (
            self._busy
            and not self._closed
            and timeout_ms < self._timeout_ms_max
            and self._held < POOLED_MAX
        ):
            self._wanted[timeout_ms] = self._wanted.get(timeout_ms, 0) + 1
            self._held += 1

    def refilled(
        self, number: int, first_sequence: int, registered: Mapping[TopicPartition, Registered]
    ) -> list[PoolEffect]:
        """A refill's transactions are open; the next `tick` releases those that came too late."""
        asked = self._on_the_way.pop(number, None)
        if asked is None:
            return []
        refill, asked_ms = asked
        sequences = range(first_sequence, first_sequence + refill.count)
        if self._closed:
            self._held -= refill.count
            return [ReleaseUnused(tuple(sequences))]
        until_ms, subscriptions = asked_ms + POOLED_MS_MAX, frozenset(refill.subscriptions)
        stock = self._stock.setdefault(refill.timeout_ms, [])
        stock.extend(Pooled(until_ms, it, registered, subscriptions) for it in sequences)
        stock.sort(key=_age)
        return []

    def not_refilled(self, number: int, *, refused: bool) -> None:
        """A refill failed; if it was refused, time-outs that long are not pooled any more."""
        asked = self._on_the_way.pop(number, None)
        if asked is None:
            return
        refill, _ = asked
        self._held -= refill.count
        if refused:
            self._timeout_ms_max = min(self._timeout_ms_max, refill.timeout_ms)

    def tick(self, now_ms: float) -> list[PoolEffect]:
        """Requests the successors that are wanted, and releases old transactions."""
        effects = self._refills(now_ms)
        old: list[int] = []
        for timeout_ms, stock in list(self._stock.items()):
            kept = [one for one in stock if one.until_ms > now_ms]
            old += [one.sequence for one in stock[: len(stock) - len(kept)]]
            if kept:
                self._stock[timeout_ms] = kept
            else:
                del self._stock[timeout_ms]
        return effects + self._release(old)

    def close(self) -> list[PoolEffect]:
        """Releases every pooled transaction; nothing is requested after this."""
        self._closed = True
        self._held -= sum(self._wanted.values())
        self._wanted.clear()
        stocks, self._stock = self._stock.values(), {}
        return self._release([one.sequence for stock in stocks for one in stock])

    def _refills(self, now_ms: float) -> list[PoolEffect]:
        wanted, self._wanted = self._wanted, {}
        partitions = _lately(self._partitions, now_ms)
        subscriptions = _lately(self._subscriptions, now_ms)
        if len(subscriptions) > SUBSCRIPTIONS_MAX:
            subscriptions = ()
        if len(partitions) > PARTITIONS_MAX or not (partitions or subscriptions):
            self._held -= sum(wanted.values())
            return []
        effects: list[PoolEffect] = []
        for timeout_ms, count in wanted.items():
            self._number += 1
            refill = Refill(self._number, timeout_ms, count, partitions, subscriptions)
            self._on_the_way[refill.number] = refill, now_ms
            effects.append(refill)
        return effects

    def _release(self, sequences: list[int]) -> list[PoolEffect]:
        self._held -= len(sequences)
        return [ReleaseUnused(tuple(sequences))] if sequences else []


def _note(noted: dict[U, float], used: Iterable[U], now_ms: float, most: int) -> None:
    for one in used:
        noted.pop(one, None)
        noted[one] = now_ms
    while len(noted) > most:
        del noted[next(iter(noted))]


def _lately(noted: Mapping[U, float], now_ms: float) -> tuple[U, ...]:
    return tuple(one for one, at_ms in noted.items() if at_ms + USED_MS > now_ms)


def _age(one: Pooled) -> float:
    return one.until_ms
