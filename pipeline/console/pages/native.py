"""The page of Kafka's own transactions: open ones, hanging ones, transactional ids, producers."""

import shlex
from dataclasses import replace

from stilltide.pipeline.console.ids import partition_cell
from stilltide.pipeline.console.pages.topic import chosen_cluster, is_name
from stilltide.pipeline.console.views import (
    NOTHING,
    Cell,
    Choice,
    PageSection,
    PageView,
    Query,
    age_text,
    ago,
    columns,
    in_words,
    number,
    number_in,
    pages_of,
    rows_each,
    table,
)
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.core.status.asks import (
    PARTITIONS_MAX,
    Ask,
    Native,
    NativeAsk,
    Producers,
    ProducersAsk,
)
from stilltide.pipeline.core.status.values import Aged, ClusterSeen, SystemStatus
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    ListedTransaction,
    TransactionState,
)
from stilltide.schemas.values import ClusterName, TopicPartition

NAME = "native"
PARAMS = ("cluster", "topic", "first")

_OPEN = columns(
    "first record", "transactional id", "producer#", "epoch#", "state", "open for#", "idle for#"
)
_IDS = columns("transactional id", "producer#", "state")
_PRODUCERS = columns(
    "partition", "producer#", "epoch#", "open from#", "last sequence#", "last written#"
)
_KINDS = {
    TransactionState.ONGOING: "idle",
    TransactionState.EMPTY: "idle",
    TransactionState.COMPLETE_COMMIT: "good",
    TransactionState.COMPLETE_ABORT: "idle",
}
_COMPLETE = (
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)
_MORE = "stilltide native list has them"


def native_asks(status: SystemStatus, query: Query) -> tuple[Ask, ...]:
    """What the page shows beyond the common state; nothing of clusters that are away."""
    asks: list[Ask] = [NativeAsk(cluster.name) for cluster in status.clusters if not cluster.away]
    cluster, topic = chosen_cluster(status, query), query.get("topic", "")
    if cluster is not None and not cluster.away and topic and is_name(topic):
        asks.append(ProducersAsk(cluster.name, topic, number_in(query, "first") or 0))
    return tuple(asks)


def native_page(view: PageView) -> tuple[PageSection, ...]:
    """Open transactions and ids of each cluster; producers of a topic, first if one is chosen."""
    sections: list[PageSection] = []
    for cluster in view.status.clusters:
        aged: Aged[Native] = view.answers.get(NativeAsk(cluster.name), Aged())
        sections += [_open(view, cluster, aged), _ids(view, cluster, aged)]
    producers = _producers(view)
    return (producers, *sections) if view.query.get("topic") else (*sections, producers)


def _open(view: PageView, cluster: ClusterSeen, aged: Aged[Native]) -> PageSection:
    native, now_ms = aged.value, view.status.now_ms
    filled = native.open_partition_count if native else 0
    return PageSection(
        f"Open on {cluster.name}",
        note="Committed readers of a partition wait at the first record of an open transaction."
        " No coordinator will end one that hangs."
        + (
            f" Only {PARTITIONS_MAX} of {filled} partitions were asked."
            if filled > PARTITIONS_MAX
            else ""
        ),
        age=age_text(aged, now_ms),
        problem=aged.problem or cluster.brokers.problem,
        hint=aged.hint or cluster.brokers.hint,
        empty="" if native is None else "No native transaction is open.",
        urgent=any(it.hanging for it in native.open) if native else False,
        tables=table(
            f"Open native transactions on {cluster.name}",
            _OPEN,
            [_transaction(it, cluster, now_ms) for it in (native.open if native else ())],
            elsewhere="stilltide native watch has them",
        ),
    )


def _transaction(opened: OpenNativeTransaction, at: ClusterSeen, now_ms: int) -> tuple[Cell, ...]:
    producer, transaction = opened.producer, opened.transaction
    on = f"--cluster {shlex.quote(at.name)}"
    command = note = ""
    if opened.hanging:
        topic = shlex.quote(opened.data.topic)
        command = f"stilltide native abort {topic} {opened.data.partition} {opened.open_from} {on}"
    elif opened.is_own:
        note = "Stilltide's own: ends by itself"
    else:
        command = f"stilltide native fence {shlex.quote(opened.transactional_id or '')} {on}"
    state = "hangs" if opened.hanging or transaction is None else transaction.state
    started_ms = transaction.started_at_ms if transaction else None
    return (
        partition_cell(at.name, opened.data, opened.open_from, command=command),
        Cell(opened.transactional_id or "unknown", "id", note=note),
        Cell(str(producer.producer_id), "num"),
        Cell(str(producer.producer_epoch), "num"),
        Cell(in_words(state), "bad" if opened.hanging else "idle"),
        Cell(ago(started_ms, now_ms), "num"),
        Cell(NOTHING if opened.written_ms is None else ago(opened.written_ms, now_ms), "num"),
    )


def _written(producer: ActiveProducer, now_ms: int) -> str:
    return NOTHING if producer.last_timestamp_ms < 0 else ago(producer.last_timestamp_ms, now_ms)


def _ids(view: PageView, cluster: ClusterSeen, aged: Aged[Native]) -> PageSection:
    native = aged.value
    counts = sorted(native.id_count.items()) if native else []
    return PageSection(
        f"Transactional ids on {cluster.name}",
        note=", ".join(f"{count:,} {in_words(state)}" for state, count in counts),
        age=age_text(aged, view.status.now_ms),
        empty="" if native is None else "No coordinator knows a transactional id.",
        tables=table(
            f"Transactional ids on {cluster.name}",
            _IDS,
            [
                (
                    Cell(known.transactional_id, "id"),
                    Cell(str(known.producer_id), "num"),
                    Cell(in_words(known.state), _kind(known.state)),
                )
                for known in sorted(native.ids if native else (), key=_is_complete)
            ],
            sum(count for _, count in counts),
            _MORE,
            rows_max=rows_each(view.status.clusters),
        ),
    )


def _is_complete(known: ListedTransaction) -> bool:
    """Whether no transaction of an id is under way; those with one come first."""
    return known.state in _COMPLETE


def _kind(state: str) -> str:
    return next((kind for it, kind in _KINDS.items() if it == state), "warn")


def _producers(view: PageView) -> PageSection:
    cluster, topic = chosen_cluster(view.status, view.query), view.query.get("topic", "")
    name = cluster.name if cluster else ""
    asked = [aged for ask, aged in view.answers.items() if isinstance(ask, ProducersAsk)]
    aged: Aged[Producers] = asked[0] if asked else Aged()
    producers, first = aged.value, number_in(view.query, "first") or 0
    listed = producers.producers if producers else ()
    nothing = "Choose a topic." if not topic else "No topic can have this name."
    if asked:
        nothing = "" if producers is None else "The leaders remember no producer."
    return PageSection(
        f"Producers of {topic} on {name}" if topic else "Producers",
        note="Producers that the leaders of the partitions remember.",
        age=age_text(aged, view.status.now_ms) if asked else "",
        problem=aged.problem,
        hint=aged.hint,
        empty=nothing,
        path=NAME,
        choices=(
            Choice("cluster", "Cluster", name, tuple(it.name for it in view.status.clusters)),
            Choice("topic", "Topic", topic),
        ),
        tables=table(
            "Producers",
            _PRODUCERS,
            [_producer(name, *it, view.status.now_ms) for it in listed],
            producers.total if producers else 0,
            "stilltide native producers has them",
        ),
        links=pages_of(
            NAME,
            first,
            PARTITIONS_MAX,
            producers.partition_total if producers else 0,
            cluster=name,
            topic=topic,
        ),
    )


def _producer(
    cluster: str, data: TopicPartition, producer: ActiveProducer, now_ms: int
) -> tuple[Cell, ...]:
    return (
        replace(partition_cell(ClusterName(cluster), data), text=str(data.partition)),
        Cell(str(producer.producer_id), "num"),
        Cell(str(producer.producer_epoch), "num"),
        number(producer.open_from) if producer.open_from is not None else Cell(NOTHING, "num"),
        Cell(str(producer.last_sequence), "num"),
        Cell(_written(producer, now_ms), "num"),
    )
