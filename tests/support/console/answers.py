"""Answers to what a page asks for itself only, for each state of `tests.support.console.states`."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stilltide.connectors.ports.readers import Record, TimedRecord
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import (
    PARTITIONS_MAX,
    Answers,
    Ask,
    ConfigsAsk,
    DescribedConfigs,
    DescribedGroup,
    EndedAsk,
    EndedTxn,
    EndedTxns,
    GroupAsk,
    GroupsAsk,
    LagAsk,
    ListedGroup,
    ListedGroups,
    ListedTopic,
    Logs,
    LogsAsk,
    MemberSeen,
    NamedTopics,
    Native,
    NativeAsk,
    PartitionEnds,
    Partitions,
    PartitionsAsk,
    Producers,
    ProducersAsk,
    ReadPlace,
    Records,
    RecordsAsk,
    TopicsAsk,
    VisibleLag,
)
from stilltide.pipeline.core.status.values import Aged
from stilltide.pipeline.drivers.read_committed.browse import (
    WINDOW_OFFSETS,
    BrowsedRecord,
    BrowsedWindow,
    Judged,
)
from stilltide.pipeline.drivers.status.looks.topics import records_of
from stilltide.schemas.log_frames import FlushFigures, LogFigures
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
)
from stilltide.schemas.topics import PENDING_ACK_LOG, TXN_LOG
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.console.states import TOPICS
from tests.support.hostile import HOSTILE
from tests.support.status.samples import NOW_MS, A

Answering = Callable[[Ask], Aged[Any]]

PARTITIONS = 1000
"""Partitions of every topic."""

ENDS = (Offset(1_100_000), EndOffset(1_204_210), EndOffset(1_204_310))
"""Log start, last stable offset and high watermark of every partition."""

CONFIGS = DescribedConfigs(
    {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "min.insync.replicas": "2",
        "max.message.bytes": "1048588",
        "segment.bytes": "1073741824",
        "compression.type": "producer",
        "index.interval.bytes": "4096",
    },
    frozenset({"retention.ms"}),
)
BINARY = bytes(range(120, 250))
_HOSTILE_BYTES = [it.encode(errors="surrogateescape") for it in HOSTILE.values()]


def _judged(number: int, start: int, values: Sequence[bytes]) -> Judged:
    """A record of a window: most are visible, of some transactions, some aborted."""
    offset = Offset(start + number)
    txn = TxnId(number % 4, 7000 + number // 90)
    verdict = RecordVerdict.ABORTED if txn.sequence % 3 == 1 else RecordVerdict.VISIBLE
    if number > WINDOW_OFFSETS * 0.9 and txn.coordinator == 2:
        verdict = RecordVerdict.UNDECIDED
    if number % 701 == 700:
        verdict = RecordVerdict.LATE
    plain = number % 5 == 0
    record = TimedRecord.at(
        Record(
            "orders",
            3,
            offset,
            f"customer-{number % 37}".encode() if number % 11 else None,
            values[number % len(values)],
            [("traceparent", b"00-4bf9")],
        ),
        NOW_MS - 60_000 + 20 * number,
    )
    native = number % 97 == 0
    return Judged(
        BrowsedRecord.of(record),
        None if plain else txn.to_bytes(),
        RecordVerdict.ABORTED if native else RecordVerdict.VISIBLE if plain else verdict,
        native,
    )


def records(
    data: TopicPartition, values: Sequence[bytes], start: int | None = None, *, only: bool = False
) -> Records:
    """A window full of records, the last ones or those from an offset on; or one record."""
    first = ENDS[2] - WINDOW_OFFSETS if start is None else start
    count = 1 if only else WINDOW_OFFSETS
    window = BrowsedWindow(
        *ENDS,
        Offset(first),
        EndOffset(first + count),
        EndOffset(first + WINDOW_OFFSETS // 2),
        tuple(_judged(it, first, values) for it in range(count) if it % 50 != 49),
    )
    return records_of(data, window, is_tail=start is None, with_headers=only)


def _producer(number: int, open_from: int | None = None) -> ActiveProducer:
    first = None if open_from is None else Offset(open_from)
    return ActiveProducer(4700 + number, 3, 118, NOW_MS - 40_000 * number, 12, first)


def _native(ids: Sequence[str]) -> Native:
    held = TopicPartition("payments", 4), TopicPartition("invoices", 5)
    described = DescribedTransaction(
        ids[0], 1, "Ongoing", 4701, 3, 60_000, NOW_MS - 22_000, (held[1],)
    )
    return Native(
        (
            OpenNativeTransaction(
                held[0], Offset(88_017), _producer(11, 88_017), None, None, hanging=True
            ),
            OpenNativeTransaction(
                held[1], Offset(1_207_002), _producer(1, 7), ids[0], described, hanging=False
            ),
        ),
        2,
        tuple(
            ListedTransaction(
                one, 4701 + number, ("Ongoing", "CompleteCommit", "Empty")[number % 3]
            )
            for number, one in enumerate(ids)
        ),
        Counter({"Ongoing": 1, "CompleteCommit": 140, "Empty": 3}),
    )


def _figures(number: int) -> LogFigures:
    """A log that is written to; most entries leave the buffer since no write is in flight."""
    return LogFigures(
        Offset(17),
        batching_enabled=True,
        batch_records_max=512,
        batch_bytes_max=4_194_304,
        batch_delay_us_max=1000,
        flush_eager=True,
        entries_written=90_412 + number,
        records_written=1_204_117,
        appends_in_flight=3 * number,
        recovery_ms=312,
        flushes=(
            FlushFigures("idle", 88_000, 900_000, 61_000_000, 14_000_000, 1900),
            FlushFigures("records", 412, 210_944, 14_000_000, 300_000, 4100),
            FlushFigures("unbatched", 2000, 2000, 90_000, 0, 0),
        ),
    )


def _others(
    ask: ConfigsAsk | LogsAsk | EndedAsk | LagAsk | GroupsAsk | GroupAsk, names: Sequence[str]
) -> Any:
    match ask:
        case GroupsAsk() | GroupAsk():
            return _groups(ask, names)
        case ConfigsAsk():
            return CONFIGS
        case LogsAsk():
            logs: dict[TopicPartition, LogFigures | None] = {
                TopicPartition(topic, number): _figures(number)
                for topic in (TXN_LOG, PENDING_ACK_LOG)
                for number in range(4)
            }
            return Logs(logs | {TopicPartition(TXN_LOG, 3): None})
        case EndedAsk():
            data = [TopicPartition(name, number) for number, name in enumerate(names)]
            outcomes = ("committed", "committed", "aborted", "mixed")
            ended = (
                EndedTxn(
                    TxnId(number % 4, 6900 - number),
                    outcomes[number % 4],
                    NOW_MS - 900 * number,
                    None if number % 4 == 2 else 3 * number,
                    tuple(data[: 1 + number % 5]),
                )
                for number in range(50)
            )
            return EndedTxns(tuple(ended), "")
        case LagAsk():
            return VisibleLag(1204, at_least=ask.cluster == A)


def _topics(names: Sequence[str], text: str, system_total: int) -> NamedTopics:
    """Topics of every size, policy and rate, and 400 more that match."""
    topics = tuple(
        ListedTopic(
            name,
            PARTITIONS,
            3,
            ("delete", "compact", "delete,compact")[number % 3],
            number % 3,
            41_000_000 * 7 ** (number % 6),
            PARTITIONS * 104_310,
            (1204.4, 0.0, 0.3, None)[number % 4],
        )
        for number, name in enumerate(names)
        if text in name
    )
    return NamedTopics(topics, len(topics) and len(topics) + 400, system_total)


def _listed(name: str, number: int) -> ListedGroup:
    states = ("Stable", "Empty", "PreparingRebalance")
    topics = TOPICS[: number % 5]
    lag = (1204, 0, None)[number % 3] if topics else None
    return ListedGroup(name, states[number % 3], (3, 0, 1)[number % 3], topics, lag)


def _groups(ask: GroupsAsk | GroupAsk, names: Sequence[str]) -> Any:
    """Groups that are replicated, others, and one of Stilltide."""
    if isinstance(ask, GroupsAsk):
        all_names = ["billing", "fraud", f"{ask.cluster}-export", "stilltide.workers-a", *names]
        found = [it for it in all_names if ask.text in it]
        listed = tuple(_listed(name, number) for number, name in enumerate(found))
        return ListedGroups(listed, len(listed) + 7)
    members = tuple(
        MemberSeen(f"{name}-0b7d3f61-9a2e-4c55-8f0e", f"10.0.0.{number}", 2)
        for number, name in enumerate(names)
    )
    places = tuple(
        ReadPlace(
            TopicPartition("orders", number),
            None if number == 3 else Offset(1_204_000 + number),
            EndOffset(1_204_310),
            members[number].client if number < len(members) else "",
        )
        for number in range(12)
    )
    group = ListedGroup(ask.group, "Stable", len(members), ("orders",), 3001)
    return DescribedGroup(group, members, places, 12)


def _busy(names: Sequence[str], ids: Sequence[str], values: Sequence[bytes]) -> Answering:
    def answer(ask: Ask) -> Any:
        match ask:
            case TopicsAsk(_, text, _, system):
                return _topics(names, text, 0 if system else 14)
            case PartitionsAsk(_, topic, first):
                numbers = range(first, min(PARTITIONS, first + PARTITIONS_MAX))
                ends = (PartitionEnds(TopicPartition(topic, it), *ENDS) for it in numbers)
                sizes = {TopicPartition(topic, it): 4100 * 1234 * it for it in numbers}
                return Partitions(PARTITIONS, tuple(ends), sizes)
            case RecordsAsk(_, data, start, only, _):
                return records(data, values, start, only=only)
            case NativeAsk():
                return _native(ids)
            case ProducersAsk(_, topic, first):
                numbers = range(first, min(PARTITIONS, first + PARTITIONS_MAX))
                them = ((TopicPartition(topic, it), _producer(it)) for it in numbers)
                return Producers(PARTITIONS, tuple(them), PARTITIONS_MAX)
            case _:
                return _others(ask, names)

    return lambda ask: Aged(answer(ask), NOW_MS - 700)


_EMPTY: dict[type, Any] = {
    TopicsAsk: NamedTopics((), 0),
    PartitionsAsk: Partitions(0, ()),
    ConfigsAsk: DescribedConfigs({}, frozenset()),
    GroupsAsk: ListedGroups((), 0),
    GroupAsk: DescribedGroup(ListedGroup("g", "Dead", 0, (), None), (), (), 0),
    NativeAsk: Native((), 0, (), Counter()),
    ProducersAsk: Producers(0, (), 0),
    LogsAsk: Logs({}),
    EndedAsk: EndedTxns((), ""),
    LagAsk: VisibleLag(0, at_least=False),
}


def _empty(ask: Ask) -> Aged[Any]:
    """A cluster where nothing is."""
    if isinstance(ask, RecordsAsk):
        nothing = Offset(0), EndOffset(0), EndOffset(0)
        window = BrowsedWindow(*nothing, Offset(0), EndOffset(0), None, ())
        return Aged(records_of(ask.data, window, is_tail=True), NOW_MS - 700)
    return Aged(_EMPTY[type(ask)], NOW_MS - 700)


def unread(_ask: Ask) -> Aged[Any]:
    """Nothing was read yet."""
    return Aged()


def _failed(_ask: Ask) -> Aged[Any]:
    """Nothing can be read."""
    text = HOSTILE["script"]
    return Aged(None, None, f"orders/3: {text}", f"grant the right to read {text}")


_TEXTS = [b'{"order": 4711, "amount": "12.50"}', b"shipped", BINARY, b""]
_IDS = [f"invoicer-{number}" for number in range(144)]

ANSWERS: dict[str, Answering] = {
    "well": _busy(TOPICS, _IDS, _TEXTS),
    "empty": _empty,
    "unread": unread,
    "busy": _busy(TOPICS, _IDS, _TEXTS),
    "cluster away": _failed,
    "all away": unread,
    "hostile names": _busy(
        list(HOSTILE.values()), list(HOSTILE.values()), [*_HOSTILE_BYTES, BINARY]
    ),
}
"""By name of the state."""

ADDRESSES = {
    "topic": "topic?cluster=a&topic=orders&partition=3",
    "native": "native?cluster=a&topic=orders",
}
"""Addresses of pages where something was chosen; of other pages their names."""


def answering(answer: Answering) -> Callable[[Sequence[Ask], float], Awaitable[Answers]]:
    """Answers as the console takes them."""

    async def answers(asks: Sequence[Ask], _patience_s: float) -> Answers:
        return {ask: answer(ask) for ask in asks}

    return answers
