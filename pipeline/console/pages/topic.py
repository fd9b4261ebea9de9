"""The page of a topic: its partitions, and what readers do with the records of one of them."""

from dataclasses import replace
from datetime import UTC, datetime

from stilltide.pipeline.console.decoding import AUTO, FORMS, decoded
from stilltide.pipeline.console.views import (
    NOTHING,
    UNKNOWN,
    Cell,
    Choice,
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
    pages_of,
    shown_read,
    size,
    strip,
    table,
)
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import (
    RECORDS_MAX,
    SPANS_MAX,
    WHOLE_BYTES_MAX,
    Ask,
    ConfigsAsk,
    DescribedConfigs,
    JudgedRecord,
    ListedTopic,
    NamedTopics,
    PartitionEnds,
    Partitions,
    PartitionsAsk,
    Records,
    RecordsAsk,
    TopicsAsk,
    TxnSpan,
)
from stilltide.pipeline.core.status.values import Aged, ClusterSeen, ReaderHold, SystemStatus
from stilltide.schemas.values import Offset, TopicPartition

NAME = "topic"
PARAMS = ("cluster", "topic", "partition", "from", "first", "system", "offset", "as")

_NAME_CHARS_MAX = 249
SHOWN = "shown"
"""The choice that topics of Stilltide itself are listed."""

_TOPICS = columns(
    "topic",
    "partitions#",
    "replicas#",
    "size#",
    "offsets#",
    "a second#",
    "policy",
    "configs",
)
_SIZE_NOTE = (
    "Size: bytes on disk of one replica. Offsets: from log start to end, markers and all. A second:"
    " offsets written, since the last look."
)
_COMMON_CONFIGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.insync.replicas",
    "max.message.bytes",
    "segment.bytes",
    "compression.type",
)
_NUMBER_DIGITS_MAX = 18
_PARTITIONS = columns(
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
_PARTITIONS_NOTE = (
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


def chosen_cluster(status: SystemStatus, query: Query) -> ClusterSeen | None:
    """The cluster that the viewer has chosen, or else the first one."""
    name = query.get("cluster")
    named = (cluster for cluster in status.clusters if cluster.name == name)
    return next(named, status.clusters[0] if status.clusters and not name else None)


def topic_asks(status: SystemStatus, query: Query) -> tuple[Ask, ...]:
    """What the page shows beyond the common state; nothing of a cluster that is away."""
    cluster = chosen_cluster(status, query)
    if cluster is None or cluster.away:
        return ()
    topic = query.get("topic", "")
    if not topic:
        return (_topics_ask(cluster, query),)
    if not is_name(topic):
        return ()
    partition = number_in(query, "partition")
    if partition is None:
        first = number_in(query, "first") or 0
        return (
            PartitionsAsk(cluster.name, topic, first),
            ConfigsAsk(cluster.name, topic),
            TopicsAsk(cluster.name, topic, 0, with_system=True),
        )
    data = TopicPartition(topic, partition)
    offset = number_in(query, "offset")
    if offset is not None:
        return (RecordsAsk(cluster.name, data, offset, only=True),)
    return (RecordsAsk(cluster.name, data, number_in(query, "from")),)


def _topics_ask(cluster: ClusterSeen, query: Query) -> TopicsAsk:
    with_system = query.get("system") == SHOWN
    return TopicsAsk(cluster.name, "", number_in(query, "first") or 0, with_system=with_system)


def is_name(topic: str) -> bool:
    """Whether a topic may have this name; brokers are not asked for others."""
    return len(topic) <= _NAME_CHARS_MAX and topic.isprintable()


def topic_page(view: PageView) -> tuple[PageSection, ...]:
    """The choice, then partitions, strip, transactions and records of what was chosen."""
    cluster = chosen_cluster(view.status, view.query)
    sections = [_choice(view)]
    if cluster is None:
        return tuple(sections)
    answers = {type(ask): aged for ask, aged in view.answers.items()}
    partitions, topics = answers.get(PartitionsAsk), answers.get(TopicsAsk)
    if partitions is not None:
        if partitions.value and topics:
            sections.append(_topic(view, cluster, topics))
        sections.append(_partitions(view, cluster, partitions))
        if partitions.value:
            sections.append(_configs(view, cluster, answers.get(ConfigsAsk, Aged())))
    records = answers.get(RecordsAsk)
    if records is not None:
        look = _record_page if number_in(view.query, "offset") is not None else _looked_at
        sections += look(view, cluster, records)
    if topics is not None and not (partitions and partitions.value):
        sections.append(_topics(view, cluster, topics))
    return tuple(sections)


def _choice(view: PageView) -> PageSection:
    cluster = chosen_cluster(view.status, view.query)
    topic = view.query.get("topic", "")
    problem, hint = "", ""
    if cluster is None:
        problem, hint = "no cluster has this name", "choose one of those in the list"
    elif cluster.away:
        problem, hint = cluster.brokers.problem, cluster.brokers.hint
    elif not is_name(topic):
        problem, hint = "no topic can have this name", "choose another"
    return PageSection(
        "Which topic",
        problem=problem,
        hint=hint,
        path=NAME,
        choices=(
            Choice(
                "cluster",
                "Cluster",
                cluster.name if cluster else "",
                tuple(cluster.name for cluster in view.status.clusters),
            ),
            Choice("topic", "Topic", topic),
            Choice("partition", "Partition", view.query.get("partition", ""), is_number=True),
            Choice("from", "From offset", view.query.get("from", ""), is_number=True),
            Choice("as", "Show bytes as", view.query.get("as", AUTO), FORMS),
        ),
    )


def _topics(view: PageView, cluster: ClusterSeen, topics: Aged[NamedTopics]) -> PageSection:
    named, query = topics.value, view.query
    shown = named.topics if named else ()
    first = number_in(query, "first") or 0
    links: list[Cell] = []
    if not query.get("topic"):
        chosen = {"cluster": cluster.name, "system": query.get("system")}
        links += pages_of(NAME, first, len(shown), named.total if named else 0, **chosen)
    if named and named.system_total:
        text = f"show the {named.system_total:,} topics of Stilltide itself"
        links.append(Cell(text, href=address(NAME, cluster=cluster.name, system=SHOWN)))
    elif query.get("system") == SHOWN:
        text = "hide the topics of Stilltide itself"
        links.append(Cell(text, href=address(NAME, cluster=cluster.name)))
    return PageSection(
        f"Topics on {cluster.name}",
        note=_topics_note(named),
        age=age_text(topics, view.status.now_ms),
        problem=topics.problem,
        hint=topics.hint,
        empty="" if named is None else "No topic has a name like this.",
        tables=table(
            f"Topics on {cluster.name}",
            _TOPICS,
            [_topic_row(topic, cluster) for topic in shown],
            max(0, named.total - first) if named else 0,
            "type a part of the name, or go on to later names",
        ),
        links=tuple(links),
    )


def _topics_note(named: NamedTopics | None) -> str:
    problems = "".join(f" Not known: {problem}." for problem in (named.problems if named else ()))
    return f"{_SIZE_NOTE}{problems}"


def _topic(view: PageView, cluster: ClusterSeen, topics: Aged[NamedTopics]) -> PageSection:
    """The figures of the chosen topic."""
    name, named = view.query.get("topic", ""), topics.value
    rows = [
        _topic_row(topic, cluster)
        for topic in (named.topics if named else ())
        if topic.name == name
    ]
    return PageSection(
        f"Topic {name} on {cluster.name}",
        note=_topics_note(named),
        age=age_text(topics, view.status.now_ms),
        problem=topics.problem,
        hint=topics.hint,
        tables=table(f"Topic {name}", _TOPICS, rows),
        links=(Cell("all topics", href=address(NAME, cluster=cluster.name)),),
    )


def _topic_row(topic: ListedTopic, cluster: ClusterSeen) -> tuple[Cell, ...]:
    own, rate, policy = topic.own_configs, topic.rate, topic.policy
    written = UNKNOWN if rate is None else f"{rate:,.0f}" if rate >= 1 or not rate else "< 1"
    return (
        Cell(topic.name, href=address(NAME, cluster=cluster.name, topic=topic.name)),
        number(topic.partition_count),
        number(topic.replica_count),
        Cell(UNKNOWN, "num") if topic.size_bytes is None else size(topic.size_bytes),
        number(topic.offsets),
        Cell(written, "num"),
        Cell(policy or UNKNOWN),
        Cell(UNKNOWN if own is None else f"{own} set" if own else "defaults", "soft"),
    )


def _configs(view: PageView, cluster: ClusterSeen, aged: Aged[DescribedConfigs]) -> PageSection:
    """What is set on the topic, then what people look for first."""
    topic, configs = view.query.get("topic", ""), aged.value
    rows: list[tuple[Cell, ...]] = []
    if configs is not None:
        names = [*sorted(configs.own), *(it for it in _COMMON_CONFIGS if it not in configs.own)]
        rows = [
            (
                Cell(name, "code"),
                Cell(configs.values[name] or "empty", "code", note=_in_words(name, configs)),
                Cell("this topic" if name in configs.own else "the cluster", "soft"),
            )
            for name in names
            if name in configs.values
        ]
    return PageSection(
        f"Configs of {topic} on {cluster.name}",
        note="Those that are set on the topic, then the usual ones that the cluster sets.",
        age=age_text(aged, view.status.now_ms),
        problem=aged.problem,
        hint=aged.hint,
        tables=table(f"Configs of {topic}", columns("config", "value", "set on"), rows),
    )


def _in_words(name: str, configs: DescribedConfigs) -> str:
    """A number of milliseconds or bytes as people read it."""
    value = configs.values[name] or ""
    if not value.isdecimal() or len(value) > _NUMBER_DIGITS_MAX:
        return "without limit" if value == "-1" else ""
    if name.endswith(".ms") and int(value) >= 1000:  # noqa: PLR2004 - a second
        return shown_read(int(value))
    return size(int(value)).text if name.endswith(".bytes") and int(value) >= 1024 else ""  # noqa: PLR2004 - 1 KiB


def _partitions(view: PageView, cluster: ClusterSeen, aged: Aged[Partitions]) -> PageSection:
    partitions, topic = aged.value, view.query.get("topic", "")
    holds = holds_of(cluster)
    first = number_in(view.query, "first") or 0
    ends = partitions.ends if partitions else ()
    sizes = partitions.sizes if partitions else {}
    rows = [
        _partition(end, cluster, holds.get(end.data), view.status.now_ms, sizes.get(end.data))
        for end in ends
    ]
    return PageSection(
        f"Partitions of {topic} on {cluster.name}",
        note=_PARTITIONS_NOTE,
        age=age_text(aged, view.status.now_ms),
        problem=aged.problem,
        hint=aged.hint,
        empty="" if partitions is None else "The topic has no partition from this number on.",
        tables=table(f"Partitions of {topic}", _PARTITIONS, rows),
        links=pages_of(
            NAME,
            first,
            len(ends),
            partitions.total if partitions else 0,
            cluster=cluster.name,
            topic=topic,
        ),
    )


def holds_of(cluster: ClusterSeen) -> dict[TopicPartition, ReaderHold]:
    """The first hold of each partition."""
    holds: dict[TopicPartition, ReaderHold] = {}
    for hold in cluster.holds.value or ():
        known = holds.get(hold.data)
        if known is None or hold.offset < known.offset:
            holds[hold.data] = hold
    return holds


def _partition(
    ends: PartitionEnds,
    cluster: ClusterSeen,
    hold: ReaderHold | None,
    now_ms: int,
    size_bytes: int | None,
) -> tuple[Cell, ...]:
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
        none if hold is None else Cell(f"{hold.offset:,}", "num", note=f"for {hold.holder}"),
        none if hold is None else Cell(ago(hold.since_ms, now_ms), "num"),
    )


def _looked_at(view: PageView, cluster: ClusterSeen, aged: Aged[Records]) -> list[PageSection]:
    """The strip with transactions, then the records."""
    records = aged.value
    number_of = view.query.get("partition", "")
    place = f"{view.query.get('topic', '')}/{number_of} on {cluster.name}"
    age, problem, hint = age_text(aged, view.status.now_ms), aged.problem, aged.hint
    if records is None:
        return [PageSection(f"Records of {place}", age=age, problem=problem, hint=hint)]
    hold = holds_of(cluster).get(records.ends.data)
    waits_at = _waits_at(records, hold)
    partition, _, *row = _partition(records.ends, cluster, hold, view.status.now_ms, None)
    heads = _PARTITIONS
    everything = address(NAME, cluster=cluster.name, topic=records.ends.data.topic)
    return [
        PageSection(
            f"Partition {place}",
            note=_PARTITIONS_NOTE,
            age=age,
            problem=problem,
            hint=hint,
            tables=table(f"Partition {place}", (heads[0], *heads[2:]), [(partition, *row)]),
            links=(Cell("all partitions", href=everything),),
        ),
        replace(
            _offsets(place, records, waits_at), age=age, links=_windows(view, cluster, records)
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
    ]


def _offsets(place: str, records: Records, waits_at: Offset | None) -> PageSection:
    """The strip, and the transactions in its lanes."""
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
        tables=table(
            f"Transactions with a record of {place}",
            _TRANSACTIONS,
            [_transaction(transaction) for transaction in records.transactions],
            records.transaction_count,
            "a later offset shows them",
        ),
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


def _transaction(span: TxnSpan) -> tuple[Cell, ...]:
    return (
        Cell(span.txn, "code"),
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
        Cell(record.txn or NOTHING, "code", note=_headers(record)),
        written_at(record.at_ms),
        decoded(record.key, record.key_bytes, form),
        _value(record, form),
    )


def _value(record: JudgedRecord, form: str, *, is_whole: bool = False) -> Cell:
    """The value; null behind a key deletes what the key had, where a topic compacts."""
    cell = decoded(record.value, record.value_bytes, form, is_whole=is_whole)
    is_tombstone = record.value is None and record.key is not None
    return replace(cell, note="tombstone") if is_tombstone else cell


def _record_page(view: PageView, cluster: ClusterSeen, aged: Aged[Records]) -> list[PageSection]:
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
                (Cell("transaction"), Cell(record.txn or "none", "code" if record.txn else "soft")),
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
        return Cell(f"{datetime.fromtimestamp(max(0, at_ms) / 1000, UTC):%Y-%m-%d %H:%M:%S}")
    except (ValueError, OverflowError):
        return Cell(f"{at_ms:,} ms", "warn", note="behind the year 9999")


def _headers(record: JudgedRecord) -> str:
    others = record.headers - bool(record.txn)
    return (
        f"{others} other headers"
        if record.txn and others
        else f"{others} headers"
        if others
        else ""
    )


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
