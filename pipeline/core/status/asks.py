"""What is read only while a page shows it: questions, and the values that answer them.

*Source*: docs/console.md. A question is hashable, so that all who ask the same share one answer. It
is no tuple, since tuples of two classes are equal.
Times are milliseconds since 1970; ranges are `[first, end)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.values import Aged
from stilltide.schemas.log_frames import LogFigures
from stilltide.schemas.native.transactions import ActiveProducer, ListedTransaction
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition, TxnId

TOPICS_MAX = 50
"""Topics that an answer names."""

PARTITIONS_MAX = 50
"""Partitions that an answer shows."""

GROUPS_MAX = 50
"""Consumer groups that an answer names."""

MEMBERS_MAX, PLACES_MAX = 200, 200
"""Members and partitions of a group that an answer shows."""

RECORDS_MAX = 50
"""Records that an answer shows; the others are only judged."""

SPANS_MAX = 30
"""Transactions that an answer shows."""

BYTES_MAX = 200
"""Bytes of a key or value that an answer holds."""

WHOLE_BYTES_MAX = 64 * 1024
"""Bytes of a key or value that an answer about one record holds."""

HEADERS_MAX = 50
"""Headers of one record that an answer holds, each with `HEADER_BYTES_MAX` bytes."""

HEADER_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class TopicsAsk:
    """Which topics are there, whose names contain a text, from a number on, by name?

    Attributes:
        cluster: the cluster.
        text: the text.
        first: how many names are passed over.
        with_system: whether topics of Stilltide are among them.
    """

    cluster: ClusterName
    text: str
    first: int = 0
    with_system: bool = False


@dataclass(frozen=True, slots=True)
class ConfigsAsk:
    """Which configs does a topic have?"""

    cluster: ClusterName
    topic: str


@dataclass(frozen=True, slots=True)
class PartitionsAsk:
    """Where are the ends of a topic's partitions, from a number on?"""

    cluster: ClusterName
    topic: str
    first: int


@dataclass(frozen=True, slots=True)
class RecordsAsk:
    """Which records are there from an offset on; None: at the end of the partition?

    With `only`: what is at this offset, with its headers, and more bytes of its key and value?
    With `since_ms` and without an offset: from the first record with such a timestamp, or a later
    one?
    """

    cluster: ClusterName
    data: TopicPartition
    start: int | None
    only: bool = False
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NativeAsk:
    """Which native transactions are open, and which transactional ids are known?"""

    cluster: ClusterName


@dataclass(frozen=True, slots=True)
class ProducersAsk:
    """Which producers do the leaders of a topic's partitions remember, from a number on?"""

    cluster: ClusterName
    topic: str
    first: int


@dataclass(frozen=True, slots=True)
class LogsAsk:
    """How do coordinators and pending-ack stores write their logs?"""

    cluster: ClusterName


@dataclass(frozen=True, slots=True)
class EndedAsk:
    """Which transactions ended last, and how?"""

    cluster: ClusterName


@dataclass(frozen=True, slots=True)
class LagAsk:
    """How many visible records has a group not read?"""

    cluster: ClusterName
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class GroupsAsk:
    """Which consumer groups are there, whose names contain a text, from a number on, by name?"""

    cluster: ClusterName
    text: str
    first: int = 0


@dataclass(frozen=True, slots=True)
class GroupAsk:
    """Who is in a consumer group, and where does it stand?"""

    cluster: ClusterName
    group: str


Ask = (
    TopicsAsk
    | GroupsAsk
    | GroupAsk
    | ConfigsAsk
    | PartitionsAsk
    | RecordsAsk
    | NativeAsk
    | ProducersAsk
    | LogsAsk
    | EndedAsk
    | LagAsk
)
Answers = Mapping[Ask, Aged[Any]]
"""What is known of each question; the value is of the class that the question's name begins."""


class ListedTopic(NamedTuple):
    """A topic.

    Attributes:
        name: its name.
        partition_count: number of its partitions.
        replica_count: replicas of the partition with the fewest.
        policy: its cleanup policy; None: not known.
        own_configs: number of configs that are set on the topic itself; None: not known.
        size_bytes: bytes on disk, of the largest replica of each partition; None: not known.
        offsets: offsets from the log start to the end, over all partitions; None: not asked.
        rate: offsets a second that were written since the last read; None: not known.
    """

    name: str
    partition_count: int
    replica_count: int
    policy: str | None = None
    own_configs: int | None = None
    size_bytes: int | None = None
    offsets: int | None = None
    rate: float | None = None


class NamedTopics(NamedTuple):
    """Topics by name.

    Attributes:
        topics: at most `TOPICS_MAX` of them.
        total: how many match in all.
        system_total: how many topics of Stilltide match, and are left out.
        problems: why some figures are not known.
    """

    topics: tuple[ListedTopic, ...]
    total: int
    system_total: int = 0
    problems: tuple[str, ...] = ()


class DescribedConfigs(NamedTuple):
    """The configs of a topic by name, and the names of those that are set on the topic itself."""

    values: Mapping[str, str | None]
    own: frozenset[str]


class PartitionEnds(NamedTuple):
    """The ends of a partition.

    Attributes:
        data: the partition.
        log_start: its first offset.
        last_stable: last stable offset: no native transaction is open below.
        high_watermark: end of the log.
    """

    data: TopicPartition
    log_start: Offset
    last_stable: EndOffset
    high_watermark: EndOffset


class Partitions(NamedTuple):
    """The partitions of a topic: how many there are, ends of some, and sizes as far as known."""

    total: int
    ends: tuple[PartitionEnds, ...]
    sizes: Mapping[TopicPartition, int] = MappingProxyType({})


class JudgedRecord(NamedTuple):
    """A record, and what readers of committed data do with it.

    Attributes:
        offset: its offset.
        at_ms: its timestamp.
        key, value: the first `BYTES_MAX` bytes; None: null.
        key_bytes, value_bytes: sizes of the whole.
        headers: number of headers.
        txn: its coordinated transaction; empty: none.
        verdict: what readers do with the record.
        native: whether a native transaction has aborted it, or an open one may hide it.
        header_values: name, first bytes and size of each header; only of an answer about one.
    """

    offset: Offset
    at_ms: int
    key: bytes | None
    value: bytes | None
    key_bytes: int
    value_bytes: int
    headers: int
    txn: str
    verdict: RecordVerdict
    native: bool = False
    header_values: tuple[tuple[str, bytes | None, int], ...] = ()


class JudgedRun(NamedTuple):
    """Consecutive records of one verdict; offsets between them may hold no record."""

    first: Offset
    end: EndOffset
    verdict: RecordVerdict


class TxnSpan(NamedTuple):
    """The records of a transaction in a window.

    Attributes:
        txn: the transaction.
        first, last: offsets of its first and last record in the window.
        records: number of its records there.
        verdict: what readers do with most of them: the one of the last record.
    """

    txn: str
    first: Offset
    last: Offset
    records: int
    verdict: RecordVerdict


class Records(NamedTuple):
    """Records in a window of a partition.

    Attributes:
        ends: ends of the partition, as of the reading.
        start, end: the offsets that were read.
        max_read_position: M of the partition's snapshot; None: there is no snapshot.
        runs: the records, by offset.
        counts: number of records of each verdict.
        transactions: the first `SPANS_MAX` coordinated transactions with a record in the window.
        transaction_count: number of all of them.
        records: the first `RECORDS_MAX` records.
    """

    ends: PartitionEnds
    start: Offset
    end: EndOffset
    max_read_position: EndOffset | None
    runs: tuple[JudgedRun, ...]
    counts: Mapping[RecordVerdict, int]
    transactions: tuple[TxnSpan, ...]
    transaction_count: int
    records: tuple[JudgedRecord, ...]

    @property
    def undecided(self) -> Offset | None:
        """The first undecided record of the window."""
        return next((it.first for it in self.runs if it.verdict is RecordVerdict.UNDECIDED), None)


class Native(NamedTuple):
    """Native transactions of a cluster.

    Attributes:
        open: open transactions of partitions whose last stable offset is below their end.
        open_partition_count: number of such partitions; more than were asked, if it exceeds
            those of `open`.
        ids: the first transactional ids that the coordinators know.
        id_count: number of all of them, by state.
    """

    open: tuple[OpenNativeTransaction, ...]
    open_partition_count: int
    ids: tuple[ListedTransaction, ...]
    id_count: Mapping[str, int]


class Producers(NamedTuple):
    """Producers of some partitions of a topic.

    Attributes:
        partition_total: number of partitions of the topic.
        producers: the first producers, by partition.
        total: number of producers of the partitions that were asked for.
    """

    partition_total: int
    producers: tuple[tuple[TopicPartition, ActiveProducer], ...]
    total: int


class Logs(NamedTuple):
    """The logs of a cluster's coordinators and stores; None: the owner did not answer."""

    figures: Mapping[TopicPartition, LogFigures | None]


class EndedTxn(NamedTuple):
    """A transaction that has ended.

    Attributes:
        txn: its id.
        outcome: `committed`, `aborted`, or `mixed`: damage.
        ended_ms: when its first marker was stored.
        records: records that it promised; None: aborted.
        partitions: the data partitions that it wrote to.
    """

    txn: TxnId
    outcome: str
    ended_ms: int
    records: int | None
    partitions: tuple[TopicPartition, ...]


class EndedTxns(NamedTuple):
    """The transactions that ended last, the newest first; `cut`: why not more; empty: all."""

    ended: tuple[EndedTxn, ...]
    cut: str


class VisibleLag(NamedTuple):
    """The visible records that a group has not read.

    Attributes:
        visible: number of them, over all partitions.
        at_least: whether counting ended before the end of a partition.
    """

    visible: int
    at_least: bool


class ListedGroup(NamedTuple):
    """A consumer group.

    Attributes:
        name: its name.
        state: Kafka's word for its state, such as `Stable` or `Empty`.
        members: number of its members.
        topics: topics of which it has committed offsets, ascending.
        lag: offsets between its commits and the ends of their partitions; None: not known.
    """

    name: str
    state: str
    members: int
    topics: tuple[str, ...]
    lag: int | None


class ListedGroups(NamedTuple):
    """Groups by name, at most `GROUPS_MAX`; how many match in all; why some lag is not known."""

    groups: tuple[ListedGroup, ...]
    total: int
    problems: tuple[str, ...] = ()


class MemberSeen(NamedTuple):
    """A member of a group: the client's name for itself, its address, number of its partitions."""

    client: str
    host: str
    partitions: int


class ReadPlace(NamedTuple):
    """Where a group stands in a partition.

    Attributes:
        data: the partition.
        committed: offset that the group has committed; None: none.
        end: end of the log; None: not known.
        client: the member that has the partition, by its name for itself; empty: none.
    """

    data: TopicPartition
    committed: Offset | None
    end: EndOffset | None
    client: str


class DescribedGroup(NamedTuple):
    """A group with its members, by address, and its partitions, by topic and number.

    Both are cut to `MEMBERS_MAX` and `PLACES_MAX`, and counted in `group` and `place_total`.
    """

    group: ListedGroup
    members: tuple[MemberSeen, ...]
    places: tuple[ReadPlace, ...]
    place_total: int
