"""The topics that a client writes to, and those that one of its transactions writes to.

*Source*: docs/protocols C2, C13, C18.

*Invariants*: a partition is registered with an end offset of the same description as its topic id,
or of a later one (C2, E8). Topics are looked at again at most every `max_age_s`, and at once on
request; a failed look changes nothing. All records of one key in a transaction go to one partition,
by the partition count of the first use.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from stilltide.connectors.errors import FatalError, NotAuthorizedError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.pipeline.client.usage import check_place
from stilltide.pipeline.core.coordinator.client_transaction import ClientTransaction
from stilltide.pipeline.core.partitioner import partition_for
from stilltide.pipeline.core.topic_table import (
    KnownTopic,
    TopicChange,
    TopicGrown,
    TopicRecreated,
    TopicTable,
)
from stilltide.pipeline.errors import (
    RefusedError,
    compacted_topic,
    system_topic,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import Registered
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.retry import TOPIC_LOOK
from stilltide.schemas.topics import TXN_REQUESTS, compacts, is_system_topic
from stilltide.schemas.values import EndOffset, TopicPartition

log = get_logger(__name__)


class ClientTopics:
    """The topics of one client, as they were described last.

    Args:
        admin: the cluster.
        max_age_s: longest time between two looks, > 0.
        requests: the description of the topic of requests, with one partition per coordinator.
        changed: called with each change of a topic, the topic of requests included.
        allow_compacted: whether the client writes to topics that compact (C18).

    Attributes:
        known_ends: an end offset of each partition of the described topics, no later than now.
    """

    def __init__(
        self,
        admin: LogAdmin,
        max_age_s: float,
        requests: TopicDescription,
        changed: Callable[[TopicChange], None],
        *,
        allow_compacted: bool = False,
    ) -> None:
        self._admin = admin
        self._allow_compacted = allow_compacted
        self._compacted: set[str] = set()
        self._changed = changed
        self._table = TopicTable(max_age_s * 1000)
        self._table.described(_known({requests.name: requests}))
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._began_ms = self._now_ms()
        self._table.looked(self._began_ms)
        self.known_ends: dict[TopicPartition, EndOffset] = {}

    def get(self, name: str) -> KnownTopic | None:
        """The topic, if `describe` has asked for it, without waiting."""
        return self._table.get(name)

    def writable(self, name: str) -> KnownTopic | None:
        """As `get`, and None as well for a topic that compacted at the last look (C18)."""
        return None if name in self._compacted else self._table.get(name)

    async def describe(self, name: str) -> KnownTopic:
        """The topic's id and partition count; asks the cluster the first time.

        A topic has to be described before its partitions are registered or written to.

        Raises:
            SystemTopicError: the topic is one of Stilltide's own; the cluster was not asked.
            CompactedTopicError: the topic compacts, as far as the client may see that (C18).
            FatalError: the topic does not exist.
            RetriableError: the topic is being created or deleted, or the broker is away.
        """
        if is_system_topic(name):  # a foreign record there ends workers
            raise system_topic(name, hint="write to a topic of another name")
        async with self._lock:
            if (known := self.writable(name)) is None:
                described = _known(await self._admin.describe_topics([name]))
                if name not in described:
                    raise FatalError("the topic does not exist", hint="create it first", topic=name)
                known = described[name]
                self._compacted = await self._policies([name])
                if name in self._compacted:
                    raise compacted_topic(name)
                ends = await self._ends({name: range(known.partition_count)})
                if name not in ends:
                    raise RetriableError("the topic is changing", hint="try again", topic=name)
                self.known_ends.update(ends[name])
                self._table.described(described)
            return known

    async def look(self) -> None:
        """Looks at every known topic now; a look that began after this call serves it.

        Raises:
            ConnectorError: the cluster is away, or a topic is changing; a topic without an answer
                stays as it was known.
        """
        asked_ms = self._now_ms()
        async with self._lock:
            if self._began_ms <= asked_ms:
                await self._look()

    async def look_quietly(self) -> bool:
        """Looks as `look` does; False: the look failed, which is logged."""
        try:
            await self.look()
        except StilltideError as error:
            log.warning("topics_not_looked_at", why=error.primary)
            return False
        return True

    async def run(self) -> None:
        """Looks whenever the age is reached, and soon after a failed look, until cancelled."""
        while True:
            deadline_ms = self._table.deadline_ms
            assert deadline_ms is not None
            await asyncio.sleep(max(deadline_ms - self._now_ms(), 0) / 1000)
            if not await self.look_quietly():
                await asyncio.sleep(TOPIC_LOOK.wait_s())
                self._table.overdue()

    def registration(self, data: TopicPartition) -> Registered:
        """The registration of a described partition, from the last known end offset (C2)."""
        known = self._table.get(data.topic)
        assert known is not None, "describe the topic first"
        return Registered(data, self.known_ends[data], known.topic_id)

    def ended(self, data: TopicPartition, topic_id: bytes, end_offset: int) -> None:
        """A partition of this topic id has grown to this end offset."""
        known = self._table.get(data.topic)
        if known is not None and known.topic_id == topic_id:
            self.known_ends[data] = EndOffset(max(end_offset, self.known_ends[data]))

    async def _look(self) -> None:
        self._began_ms = self._now_ms()
        self._table.looked(self._began_ms)
        described = _known(await self._admin.describe_topics(list(self._table.names)))
        new = {it.topic: _new_partitions(it, described) for it in self._table.changes(described)}
        ends = await self._ends({it: new[it] for it in new if it != TXN_REQUESTS})
        self._compacted = await self._policies([it for it in described if it != TXN_REQUESTS])
        ready = {name: described[name] for name in new if name in ends or name == TXN_REQUESTS}
        for change in self._table.described(ready):
            if isinstance(change, TopicRecreated):
                for data in [it for it in self.known_ends if it.topic == change.topic]:
                    del self.known_ends[data]
            self.known_ends.update(ends.get(change.topic, {}))
            log.info("topic_changed", change=str(change))
            self._changed(change)
        if len(ready) < len(new):
            changing = min(new.keys() - ready.keys())
            raise RetriableError("the topic is changing", hint="try again", topic=changing)

    async def _policies(self, names: Sequence[str]) -> set[str]:
        """The topics that compact: those of before, and these as they are now.

        A client without the right to see configs leaves the check to its coordinator.
        """
        if self._allow_compacted:
            return set()
        try:
            configs = await self._admin.topic_configs(names)
        except NotAuthorizedError as error:
            log.debug("policies_not_seen", why=error.primary)
            configs = {}
        return self._compacted.difference(names) | {it for it in configs if compacts(configs[it])}

    async def _ends(
        self, wanted: Mapping[str, Iterable[int]]
    ) -> dict[str, dict[TopicPartition, EndOffset]]:
        """End offsets by topic; a topic that changes meanwhile is left out."""
        data = {topic: [TopicPartition(topic, n) for n in wanted[topic]] for topic in wanted}
        asked = [partition for partitions in data.values() for partition in partitions]
        offsets = await self._admin.end_offsets(asked) if asked else {}
        return {
            topic: {partition: offsets[partition] for partition in partitions}
            for topic, partitions in data.items()
            if all(partition in offsets for partition in partitions)
        }

    def _now_ms(self) -> float:
        return self._loop.time() * 1000


class TransactionTopics:
    """The topics of one transaction, as they were when the transaction first used them (C13).

    Args:
        topics: the topics of the client.
        machine: the transaction.
        turn: number that chooses the partition of records without a key.
    """

    def __init__(self, topics: ClientTopics, machine: ClientTransaction, turn: int) -> None:
        self._topics = topics
        self._machine = machine
        self._turn = turn

    async def partition(
        self, topic: str, key: bytes | None, partition: int | None
    ) -> TopicPartition:
        """The partition for the arguments of `Transaction.send`; raises as `send`.

        It is asked for each record without a partition, and for the first one of each partition.
        """
        known = self._machine.topics.get(topic)
        if known is None:
            known = self._topics.writable(topic)
            if known is None:  # else the name was checked before
                check_place(topic, partition)
                known = await self._topics.describe(topic)
            self._machine.topics[topic] = known
        if partition is None:
            partition = partition_for(key, known.partition_count, self._turn)
        elif type(partition) is not int:
            check_place(topic, partition)
        if not 0 <= partition < known.partition_count:
            await self._check_added(topic, partition)
        return TopicPartition(topic, partition)

    async def look_after(self, error: StilltideError) -> None:
        """Looks at the topics after an error that a topic created again may have caused."""
        if isinstance(error, RefusedError | FatalError):
            await self._topics.look_quietly()

    async def _check_added(self, topic: str, partition: int) -> None:
        """Passes a partition that the topic has gained; looks at the topic, if necessary."""
        if partition >= 0 and not self._exists(topic, partition):
            await self._topics.look()
            self._machine.check_topics()
        if not self._exists(topic, partition):
            known = self._topics.get(topic)
            count = 0 if known is None else known.partition_count
            raise FatalError(f"partition {partition} is not in 0..{count - 1}", topic=topic)

    def _exists(self, topic: str, partition: int) -> bool:
        known = self._topics.get(topic)
        return known is not None and 0 <= partition < known.partition_count


def _known(described: Mapping[str, TopicDescription]) -> dict[str, KnownTopic]:
    return {name: KnownTopic(it.topic_id, it.partition_count) for name, it in described.items()}


def _new_partitions(change: TopicChange, described: Mapping[str, KnownTopic]) -> range:
    """The partitions whose end offsets are not known, or are those of a former topic."""
    before = change.before if isinstance(change, TopicGrown) else 0
    return range(before, described[change.topic].partition_count)
