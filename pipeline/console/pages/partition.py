"""A partition of a topic: its ends, and what readers do with its records."""

from dataclasses import replace
from datetime import UTC, datetime

from stilltide.pipeline.console.decoding import AUTO, decoded
from stilltide.pipeline.console.ids import TOPICS, txn_cell
from stilltide.pipeline.console.views import (
    NOTHING,
    UNKNOWN,
    Cell,
    PageSection,
    PageView,
    Query,
    address,
    age_text,
    ago,
    columns,
    kind_of,
    number,
    number_in,
    size,
    strip,
    table,
)
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import (
    RECORDS_MAX,
    SPANS_MAX,
    WHOLE_BYTES_MAX,
    JudgedRecord,
    PartitionEnds,
    Records,
    TxnSpan,
)
from stilltide.pipeline.core.status.values import Aged, ClusterSeen, ReaderHold
from stilltide.schemas.values import Offset, TopicPartition

NAME = TOPICS
PARTITIONS = columns(
    "partition",
    "size#",
    "log start#",
    "high watermark#",
    "last stable offset#",
    "max read position#",
    "aborted#",
    "readers wait at#",
    "undecided since#",
)
PARTITIONS_NOTE = (
    "Readers of committed data stop where they wait, else at the last stable offset. The max read"
    " position is where the partition's newest snapshot ends: every transaction with a record below"
    " has ended, and the snapshot names those that were aborted."
)
_TRANSACTIONS = columns("transaction", "first record#", "last record#", "records#", "outcome")
_RECORDS = columns("offset", "readers", "transaction", "written", "key", "value")
_KINDS = {
    RecordVerdict.VISIBLE: "good",
    RecordVerdict.ABORTED: "idle",
    RecordVerdict.UNDECIDED: "warn",
}
_OUTCOMES = {
    RecordVerdict.VISIBLE: "committed",
    RecordVerdict.ABORTED: "aborted",
    RecordVerdict.UNDECIDED: "undecided",
}


def holds_of(cluster: ClusterSeen) -> dict[TopicPartition, ReaderHold]:
    """The first hold of each partition."""
    holds: dict[TopicPartition, ReaderHold] = {}
    for hold in cluster.holds.value or ():
        known = holds.get(hold.data)
        if known is None or hold.offset < known.offset:
            holds[hold.data] = hold
    return holds


def partition_row(
    ends: PartitionEnds,
    cluster: ClusterSeen,
    hold: ReaderHold | None,
    now_ms: int,
    size_bytes: int | None,
) -> tuple[Cell, ...]:
    """The ends of a partition, its snapshot, and where readers wait; a size of None is unknown."""
    partition = str(ends.data.partition)
    href = address(NAME, cluster=cluster.name, topic=ends.data.topic, partition=partition)
    all_snapshots = cluster.snapshots.value or ()
    snapshot = next((it for it in all_snapshots if it.data == ends.data), None)
    none = Cell(NOTHING, "num")
    return (
        Cell(partition, href=href),
        Cell(UNKNOWN, "num") if size_bytes is None else size(size_bytes),
        number(ends.log_start),
        number(ends.high_watermark),
        number(ends.last_stable),
        none if snapshot is None else number(snapshot.max_read_position),
        none if snapshot is None else number(snapshot.aborted),
        none if hold is None else _waiting(cluster, hold),
        none if hold is None else Cell(ago(hold.since_ms, now_ms), "num"),
    )


def _waiting(cluster: ClusterSeen, hold: ReaderHold) -> Cell:
    """Where readers of a partition wait, and for which transaction."""
    if hold.native:
        return Cell(f"{hold.offset:,}", "num", note=f"for {hold.holder}")
    return Cell(f"{hold.offset:,} for", "num", parts=(txn_cell(cluster.name, hold.holder),))


def records_page(view: PageView, cluster: ClusterSeen, aged: Aged[Records]) -> list[PageSection]:
    """The partition, the strip, the records, then the transactions in the lanes of the strip."""
    records = aged.value
    number_of = view.query.get("partition", "")
    place = f"{view.query.get('topic', '')}/{number_of} on {cluster.name}"
    age, problem, hint = age_text(aged, view.status.now_ms), aged.problem, aged.hint
    if records is None:
        return [PageSection(f"Records of {place}", age=age, problem=problem, hint=hint)]
    hold = holds_of(cluster).get(records.ends.data)
    waits_at = _waits_at(records, hold)
    partition, _, *row = partition_row(records.ends, cluster, hold, view.status.now_ms, None)
    heads = PARTITIONS
    everything = address(NAME, cluster=cluster.name, topic=records.ends.data.topic)
    return [
        PageSection(
            f"Partition {place}",
            note=PARTITIONS_NOTE,
            age=age,
            problem=problem,
            hint=hint,
            tables=table(f"Partition {place}", (heads[0], *heads[2:]), [(partition, *row)]),
            links=(Cell("all partitions", href=everything),),
        ),
        replace(
            _offsets(place, records, waits_at),
            age=age,
            links=_windows(view, cluster, records),
        ),
        PageSection(
            f"Records of {place}",
            age=age,
            empty="There is no record.",
            tables=table(
                f"Records of {place}",
                _RECORDS,
                [_record(record, view, cluster, records, waits_at) for record in records.records],
                sum(records.counts.values()),
                "another offset shows them",
            ),
        ),
        _transactions(cluster, place, records, age),
    ]


def _transactions(cluster: ClusterSeen, place: str, records: Records, age: str) -> PageSection:
    """The transactions in the lanes of the strip."""
    return PageSection(
        f"Transactions of {place}",
        note="Coordinated transactions with a record among these offsets.",
        age=age,
        empty="No record here belongs to a coordinated transaction.",
        tables=table(
            f"Transactions of {place}",
            _TRANSACTIONS,
            [_transaction(cluster, transaction) for transaction in records.transactions],
            records.transaction_count,
            "a later offset shows them",
        ),
    )


def _offsets(place: str, records: Records, waits_at: Offset | None) -> PageSection:
    """The strip."""
    marks = {
        "max read position": records.max_read_position,
        "readers wait at": waits_at,
        "last stable offset": records.ends.last_stable,
    }
    return PageSection(
        f"Offsets {records.start:,} to {records.end:,} of {place}",
        note="Above: records by offset, and what readers of committed data do with them. Below: the"
        f" first {SPANS_MAX} coordinated transactions, from their first to their last record here.",
        empty="There is no record.",
        strip=strip(records, marks),
    )


def _waits_at(records: Records, hold: ReaderHold | None) -> Offset | None:
    """Where readers of the partition wait; None: nowhere that is known."""
    known = [it for it in (records.undecided, hold and hold.offset) if it is not None]
    return min(known, default=None)


def _windows(view: PageView, cluster: ClusterSeen, records: Records) -> tuple[Cell, ...]:
    """Links to the offsets before and after, and to the end of the log."""
    here = _here(cluster, records, view.query)
    length = max(1, records.end - records.start)
    links: list[Cell] = []
    if records.start > records.ends.log_start:
        before = str(max(records.ends.log_start, records.start - length))
        links.append(Cell("earlier", href=address(NAME, **here, **{"from": before})))
    if records.end < records.ends.high_watermark:
        links.append(Cell("later", href=address(NAME, **here, **{"from": str(records.end)})))
    if "from" in view.query:
        links.append(Cell("newest", href=address(NAME, **here)))
    return tuple(links)


def _transaction(cluster: ClusterSeen, span: TxnSpan) -> tuple[Cell, ...]:
    return (
        txn_cell(cluster.name, span.txn),
        number(span.first),
        number(span.last),
        number(span.records),
        Cell(_OUTCOMES.get(span.verdict, span.verdict), _KINDS.get(span.verdict, "bad")),
    )


def _here(cluster: ClusterSeen, records: Records, query: Query) -> dict[str, str | None]:
    """The choices of a page of the same partition."""
    return {
        "cluster": cluster.name,
        "topic": records.ends.data.topic,
        "partition": str(records.ends.data.partition),
        "as": query.get("as"),
    }


def _record(
    record: JudgedRecord,
    view: PageView,
    cluster: ClusterSeen,
    records: Records,
    waits_at: Offset | None,
) -> tuple[Cell, ...]:
    form = view.query.get("as", AUTO)
    here = _here(cluster, records, view.query)
    return (
        Cell(f"{record.offset:,}", "num", href=address(NAME, **here, offset=record.offset)),
        _verdict(record, waits_at),
        txn_cell(cluster.name, record.txn, note=_headers(record))
        if record.txn
        else Cell(NOTHING, "soft", note=_headers(record)),
        written_at(record.at_ms),
        decoded(record.key, record.key_bytes, form),
        _value(record, form),
    )


def _value(record: JudgedRecord, form: str, *, is_whole: bool = False) -> Cell:
    """The value; null behind a key deletes what the key had, where a topic compacts."""
    cell = decoded(record.value, record.value_bytes, form, is_whole=is_whole)
    is_tombstone = record.value is None and record.key is not None
    return replace(cell, note="tombstone") if is_tombstone else cell


def record_page(view: PageView, cluster: ClusterSeen, aged: Aged[Records]) -> list[PageSection]:
    """One record with its headers, and more of its bytes."""
    records, form, offset = aged.value, view.query.get("as", AUTO), number_in(view.query, "offset")
    title = f"Record {view.query.get('topic')}/{view.query.get('partition')}@{offset}"
    rows: list[tuple[Cell, ...]] = []
    links: list[Cell] = []
    if records is not None:
        hold = holds_of(cluster).get(records.ends.data)
        here = _here(cluster, records, view.query)
        links = _beside(records, offset or 0, here)
        for record in (it for it in records.records if it.offset == offset):
            rows = [
                (Cell("readers"), _verdict(record, _waits_at(records, hold))),
                (
                    Cell("transaction"),
                    txn_cell(cluster.name, record.txn) if record.txn else Cell("none", "soft"),
                ),
                (Cell("written"), written_at(record.at_ms)),
                (Cell("key"), decoded(record.key, record.key_bytes, form, is_whole=True)),
                *(
                    (Cell(f"header {name}"), decoded(value, size, form, is_whole=True))
                    for name, value, size in record.header_values
                ),
                (Cell("value"), _value(record, form, is_whole=True)),
            ]
    return [
        PageSection(
            f"{title} on {cluster.name}",
            note=f"At most {WHOLE_BYTES_MAX // 1024} KiB of key and value are shown.",
            age=age_text(aged, view.status.now_ms),
            problem=aged.problem,
            hint=aged.hint,
            empty=""
            if records is None
            else "There is no record at this offset: it is a marker, was compacted or deleted, or"
            " is not written yet.",
            tables=table(title, columns("what", "content"), rows),
            links=tuple(links),
        )
    ]


def _beside(records: Records, offset: int, here: dict[str, str | None]) -> list[Cell]:
    """Links to the offsets before and after, and to the records around."""
    links: list[Cell] = []
    if offset > records.ends.log_start:
        links.append(Cell("before", href=address(NAME, **here, offset=offset - 1)))
    if offset + 1 < records.ends.high_watermark:
        links.append(Cell("after", href=address(NAME, **here, offset=offset + 1)))
    around = str(max(records.ends.log_start, offset - RECORDS_MAX // 2))
    links.append(Cell("records around", href=address(NAME, **here, **{"from": around})))
    return links


def written_at(at_ms: int) -> Cell:
    """When a record was written, as its producer says, which may count in microseconds."""
    try:
        return Cell(
            f"{datetime.fromtimestamp(max(0, at_ms) / 1000, UTC):%Y-%m-%d %H:%M:%S}", "time"
        )
    except (ValueError, OverflowError):
        return Cell(f"{at_ms:,} ms", "warn", note="behind the year 9999")


def _headers(record: JudgedRecord) -> str:
    """How many headers there are besides that of the transaction."""
    others = record.headers - bool(record.txn)
    if not others:
        return ""
    return f"{others} {'other ' if record.txn else ''}header{'s' * (others != 1)}"


def _verdict(record: JudgedRecord, waits_at: Offset | None) -> Cell:
    """What readers do with a record, and why they are not there yet."""
    if record.native and record.verdict is RecordVerdict.ABORTED:
        return Cell("aborted", "idle", note="native transaction")
    if record.native:
        return Cell("undecided", "warn", note="at or behind an open native transaction")
    if (
        record.verdict is RecordVerdict.VISIBLE
        and waits_at is not None
        and record.offset > waits_at
    ):
        return Cell("visible later", "idle", note=f"behind offset {waits_at:,}")
    return Cell(
        "withheld" if kind_of(record.verdict) == "withheld" else record.verdict.value,
        _KINDS.get(record.verdict, "bad"),
        note=record.verdict.value if kind_of(record.verdict) == "withheld" else "",
    )
