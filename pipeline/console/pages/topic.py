"""The page of topics: all of a cluster, and one with its partitions and configs."""

from stilltide.pipeline.console.decoding import AUTO, FORMS
from stilltide.pipeline.console.ids import TOPICS, topic_cell
from stilltide.pipeline.console.pages.partition import (
    PARTITIONS,
    PARTITIONS_NOTE,
    holds_of,
    partition_row,
    record_page,
    records_page,
)
from stilltide.pipeline.console.views import (
    UNKNOWN,
    Cell,
    Choice,
    PageSection,
    PageView,
    Query,
    address,
    age_text,
    columns,
    number,
    number_in,
    pages_of,
    shown_read,
    size,
    table,
    time_in,
)
from stilltide.pipeline.core.status.asks import (
    Ask,
    ConfigsAsk,
    DescribedConfigs,
    ListedTopic,
    NamedTopics,
    Partitions,
    PartitionsAsk,
    RecordsAsk,
    TopicsAsk,
)
from stilltide.pipeline.core.status.values import Aged, ClusterSeen, SystemStatus
from stilltide.schemas.values import TopicPartition

NAME = TOPICS
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
    if not is_name(topic) or _is_nowhere(query):
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
    start, since_ms = number_in(query, "from"), time_in(query, "from")
    return (RecordsAsk(cluster.name, data, start, since_ms=since_ms if start is None else None),)


def _is_nowhere(query: Query) -> bool:
    """Whether the viewer wants records from what is neither an offset nor a time."""
    neither = number_in(query, "from") is None and time_in(query, "from") is None
    return bool(query.get("from")) and neither


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
        look = record_page if number_in(view.query, "offset") is not None else records_page
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
    elif _is_nowhere(view.query):
        problem = "this is neither an offset nor a time"
        hint = "such as 1200000, or 2026-11-28 22:45:00 in UTC"
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
            Choice("from", "From offset, or time (UTC)", view.query.get("from", "")),
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
        topic_cell(cluster.name, topic.name),
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
        partition_row(end, cluster, holds.get(end.data), view.status.now_ms, sizes.get(end.data))
        for end in ends
    ]
    return PageSection(
        f"Partitions of {topic} on {cluster.name}",
        note=PARTITIONS_NOTE,
        age=age_text(aged, view.status.now_ms),
        problem=aged.problem,
        hint=aged.hint,
        empty="" if partitions is None else "The topic has no partition from this number on.",
        tables=table(f"Partitions of {topic}", PARTITIONS, rows),
        links=pages_of(
            NAME,
            first,
            len(ends),
            partitions.total if partitions else 0,
            cluster=cluster.name,
            topic=topic,
        ),
    )
