"""Members of groups: what their applications do with each message, and what they saw."""

import asyncio
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from zlib import crc32

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.transaction import Transaction as ProductTransaction
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.errors import (
    AcknowledgementError,
    AlreadyAcknowledgedError,
    NotAssignedError,
)
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TopicPartition
from tests.simulation.databases.database import DatabaseError
from tests.simulation.history import (
    Acknowledged,
    History,
    Place,
    Poll,
    Rewind,
    Seek,
    Transaction,
)
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.plan import FAULTS_END_S, OUTPUT, Preparation, Reader
from tests.simulation.programs import AGAIN_S, commit, now_s, send
from tests.simulation.workload.preparing import Preparing

CALM_S = FAULTS_END_S + 40
"""Time from which members commit each message."""

ASIDE_S = 1.0
"""How long a message is laid aside for a cumulative acknowledgement."""

SEEK = 0.15
"""How often members that seek do so, of the messages that they get."""

BY_BATCHES = 0.3
"""Share of stays in a group in which a member that commits positions takes batches."""
PREPARED = 0.4
"""Part of the transactions that are prepared, of members that prepare."""

STRIDES = (-8, -3, -1, 1, 2, 5)
"""How far members go back and forward."""

Connect = Callable[[str], NetworkConnector]
"""The connector of a process to a cluster."""

Prepare = Callable[[str], Preparing]
"""The part of a process that prepares on a cluster."""


class Reading:
    """A program that reads as a member of a group, until its process ends.

    Args:
        reader: the member.
        history: the history of the world.
        chance: choices of the application.
        habits: further choices, of members that acknowledge cumulatively or seek.
        numbers: numbers of members.
    """

    def __init__(
        self,
        reader: Reader,
        history: History,
        chance: random.Random,
        habits: random.Random,
        numbers: "itertools.count[int]",
    ) -> None:
        self.reader = reader
        self.history = history
        self.chance = chance
        self.habits = habits
        self._numbers = numbers
        self._cluster = reader.cluster
        self._left = asyncio.Event()
        self.is_open = False  # whether something was polled and not committed
        if reader.mode == "positions":
            history.ordered_groups.add(reader.group)

    def move(self, cluster: str) -> None:
        """Has the member leave its cluster, and join the group on this one."""
        if cluster != self._cluster:
            self._cluster = cluster
            self._left.set()

    def has_committed(self) -> bool:
        """Whether all is committed that the member has polled since all is calm."""
        return not self.is_open or self.reader.mode != "positions"

    async def run(self, connect: Connect, prepare: Prepare) -> None:
        """Reads, and joins the group again after an error, or on another cluster."""
        while True:
            self._left.clear()
            reading = asyncio.create_task(
                self._read(connect(self._cluster), prepare(self._cluster))
            )
            leaving = asyncio.create_task(self._left.wait())
            await asyncio.wait([reading, leaving], return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _read(self, connector: NetworkConnector, preparing: Preparing) -> None:
        reader = self.reader
        while True:
            try:
                async with (
                    asyncio.timeout(self._stay_s()),
                    Subscription(
                        reader.topics,
                        group=reader.group,
                        connector=connector,
                        client_id=reader.name,
                        acknowledgements=reader.mode != "positions",
                        redelivery_delay_s=0.5,
                        undecided_records_max=reader.undecided_max,
                        deliveries_max=reader.deliveries_max or math.inf,
                        metadata_max_age_s=20.0,
                        out_of_range="earliest" if reader.seeks else "raise",
                    ) as subscription,
                ):
                    name = f"{reader.name}.{next(self._numbers)}"
                    member = _Member(self, name, subscription, connector, preparing)
                    match reader.mode:
                        case "positions":
                            await member.commit_positions()
                        case "acknowledgements":
                            await member.acknowledge()
                        case "transactions":
                            await member.acknowledge_in_transactions()
            except* (StilltideError, TimeoutError):
                await asyncio.sleep(AGAIN_S)

    def _stay_s(self) -> float | None:
        """How long the member stays; None: for good, as every member does when all is well."""
        return self.reader.stay_s if self.reader.stay_s and now_s() < FAULTS_END_S else None


class _Member:
    """One subscription of a reader, from its begin to its end."""

    def __init__(
        self,
        reading: Reading,
        name: str,
        subscription: Subscription,
        connector: NetworkConnector,
        preparing: Preparing,
    ) -> None:
        self._reading = reading
        self._reader, self._history = reading.reader, reading.history
        self._chance, self._habits = reading.chance, reading.habits
        self._name = name
        self._subscription = subscription
        self._connector = connector
        self._preparing = preparing
        self._cluster = connector.cluster
        self._seeks = 0  # the number of calls of `seek`
        self._rebalance = -1  # the last rebalance after which something was polled
        self._done: list[Poll] = []  # what the next commit makes durable
        self._gone_back: list[Seek] = []  # what the next commit rewinds
        # Of messages since the last rebalance that the application has and has not acknowledged:
        self._had: defaultdict[Place, dict[int, Poll]] = defaultdict(dict)
        # To this member, which may have given a message back after a rebalance:
        self._deliveries: Counter[tuple[Place, int]] = Counter()

    @property
    def _session(self) -> int:
        return self._subscription.rebalance_count + self._seeks

    def _polled(self, message: Record) -> Poll:
        """Notes a message; the first one after a rebalance has the time of the assignment.

        A member that has not been told yet of a rebalance may give what it had before.
        """
        at_s = now_s()
        if self._rebalance != self._subscription.rebalance_count:
            at_s = self._connector.assigned_s
            self._rebalance = self._subscription.rebalance_count
            self._had.clear()
            self._done.clear()
            self._gone_back.clear()
        place = Place(self._cluster, message.topic, message.partition)
        poll = Poll(
            at_s,
            self._reader.group,
            self._name,
            self._session,
            place,
            message.offset,
            message.value or b"",
            now_s(),
        )
        self._history.polls.append(poll)
        self._had[place][message.offset] = poll
        self._deliveries[place, message.offset] += 1
        return poll

    async def commit_positions(self) -> None:
        """Reads, and commits positions now and then."""
        async for messages in self._by_batches():
            for message in messages:
                poll = self._polled(message)
                self._history.handled.add((poll.group, poll.value))
                self._done.append(poll)
            self._reading.is_open = True
            if self._chance.random() < 0.2 or now_s() > CALM_S:
                await self._commit()
                self._reading.is_open = False
            await self._seek_at_times(messages[-1])

    async def _by_batches(self) -> AsyncGenerator[Sequence[Record], None]:
        """What the subscription returns: batches of some size and wait, or single messages."""
        if self._habits.random() < BY_BATCHES:
            records_max, wait_s = self._habits.choice(((3, 0.0), (5, 0.2), (50, 1.0)))
            async for batch in self._subscription.batches(records_max, wait_s):
                assert batch.offsets == [message.offset for message in batch]
                yield batch
            return
        async for message in self._subscription:
            yield [message]

    async def acknowledge(self) -> None:
        """Reads, and acknowledges messages by themselves or with those before them."""
        async for message in self._subscription:
            poll = self._polled(message)
            if self._lays_aside(poll, message):
                continue
            choice = self._chance.random()
            if choice < 0.2 or self._is_bad(poll.value):
                self._subscription.negative_acknowledge(message)
            else:
                covered = self._acknowledge(poll, message)
                self._take_away(covered)
                self._done += self._certain(covered)
            if choice > 0.8:
                await self._commit()
            await self._seek_at_times(message)

    def _acknowledge(self, poll: Poll, message: Record) -> list[Poll]:
        """Acknowledges a message; returns what is acknowledged."""
        if self._is_cumulative():
            covered = self._through(poll)
            with suppress(AcknowledgementError):  # one of them has to wait
                self._subscription.acknowledge_cumulative(message)
                return covered
        self._subscription.acknowledge(message)
        return [poll]

    async def acknowledge_in_transactions(self) -> None:
        """Reads, and acknowledges messages in transactions that write results."""
        numbers = itertools.count()
        async with TransactionClient(
            connector=self._connector,
            name=self._name,
            transaction_timeout_s=self._reader.timeout_s,
            metadata_max_age_s=20.0,
        ) as transactions:
            async for message in self._subscription:
                poll = self._polled(message)
                if self._lays_aside(poll, message):
                    continue
                name = f"{self._name} transaction {next(numbers)}"
                txn = Transaction(name, now_s(), cluster=self._cluster)
                self._history.transactions.append(txn)
                with suppress(StilltideError, DatabaseError):
                    async with transactions.transaction() as product:
                        await self._transform(poll, message, txn, product)
                    if product.state == "committed":
                        txn.answered("committed", now_s())
                await self._seek_at_times(message)

    async def _transform(
        self, poll: Poll, message: Record, txn: Transaction, product: ProductTransaction
    ) -> None:
        covered: list[Poll] = []

        async def write() -> None:
            covered[:] = await self._acknowledge_in(product, poll, message)
            txn.acknowledged += [(it.group, it.value) for it in self._certain(covered)]
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.05, 0.5)))
            value = b"%s of %s" % (poll.value, txn.name.encode())
            await send(product, txn, self._cluster, (OUTPUT, None), value)

        if self._reader.prepares and self._habits.random() < PREPARED:
            held_s = self._habits.choice((0.0, 0.3, 2.0))
            how = self._habits.choice(
                (Preparation(held_s, "commit"), Preparation(held_s, row="commit"))
            )
            await self._preparing.end(0, how, txn, product, write)
            self._take_away(covered)
            return
        await write()
        if self._chance.random() < 0.15:
            await product.abort()
            return
        await self._seek_at_times(message)
        await commit(product, txn)
        self._take_away(covered)

    async def _acknowledge_in(
        self, product: ProductTransaction, poll: Poll, message: Record
    ) -> list[Poll]:
        """Acknowledges a message in a transaction; returns what is acknowledged."""
        if self._is_cumulative():
            covered = self._through(poll)
            with suppress(AcknowledgementError):  # one of them has to wait
                await product.acknowledge_cumulative(self._subscription, message)
                return covered
        await product.acknowledge(self._subscription, message)
        return [poll]

    # Messages that are laid aside, and acknowledged with a later one.

    def _lays_aside(self, poll: Poll, message: Record) -> bool:
        """Whether the application leaves a message for a while; then it gives the message back."""
        lays = self._reader.is_cumulative and now_s() < CALM_S and self._habits.random() < 0.4
        if lays:
            asyncio.get_running_loop().call_later(ASIDE_S, self._give_back, poll, message)
        return lays

    def _give_back(self, poll: Poll, message: Record) -> None:
        with suppress(StilltideError):  # it is acknowledged, or belongs to another member
            self._subscription.negative_acknowledge(message)
            # Also after a rebalance: a later cumulative acknowledgement covers the message.
            self._had[poll.place].setdefault(poll.offset, poll)

    def _is_cumulative(self) -> bool:
        return self._reader.is_cumulative and self._habits.random() < 0.5

    def _through(self, poll: Poll) -> list[Poll]:
        """What a cumulative acknowledgement of a message covers."""
        return [it for offset, it in self._had[poll.place].items() if offset <= poll.offset]

    def _certain(self, covered: list[Poll]) -> list[Poll]:
        """Those of these messages that have not become dead letters instead."""
        deliveries_max = self._reader.deliveries_max or math.inf
        [*others, last] = sorted(covered, key=lambda it: it.offset)
        few = [it for it in others if self._deliveries[it.place, it.offset] < deliveries_max]
        return [*few, last]

    def _take_away(self, covered: list[Poll]) -> None:
        """Notes what the application has acknowledged."""
        for poll in covered:
            self._history.handled.add((poll.group, poll.value))
            self._had[poll.place].pop(poll.offset, None)

    def _is_bad(self, value: bytes) -> bool:
        """Whether the application never takes this message."""
        return self._reader.deliveries_max > 0 and crc32(value) % 16 == 0

    # Positions.

    async def _commit(self) -> None:
        """Commits; what was done in the session that still lasts is durable then."""
        done, rebalance = [*self._done], self._rebalance
        self._history.asked |= {(it.group, it.value) for it in done}
        self._history.rewinds += [
            Rewind(now_s(), it.group, it.place, it.offset) for it in self._gone_back
        ]
        self._gone_back.clear()
        await self._subscription.commit()
        if rebalance == self._subscription.rebalance_count:
            self._history.acknowledged += [
                Acknowledged(now_s(), it.group, it.value, self._cluster) for it in done
            ]
        self._done.clear()

    async def _seek_at_times(self, message: Record) -> None:
        """Goes back or forward, by a few messages."""
        if not self._reader.seeks or now_s() > FAULTS_END_S or self._habits.random() > SEEK:
            return
        data = TopicPartition(message.topic, message.partition)
        position = self._subscription.position(data)
        if position is None:
            return
        place = Place(self._cluster, *data)
        ordered = self._reader.mode == "positions"
        from_offset = position if ordered else 0  # acknowledgements: also what was delivered
        to = max(0, position + self._habits.choice(STRIDES))
        group, session = self._reader.group, self._session + 1
        seek = Seek(now_s(), group, self._name, session, place, from_offset, to)
        self._history.seeks.append(seek)
        self._seeks += 1
        try:
            await self._subscription.seek(data, to)
        except (NotAssignedError, OffsetOutOfRangeError, AlreadyAcknowledgedError):
            self._history.seeks.remove(seek)  # nothing was changed
            return
        self._had.pop(place, None)
        if ordered:
            self._done = [it for it in self._done if it.place != place or it.offset < to]
            self._gone_back.append(seek)
