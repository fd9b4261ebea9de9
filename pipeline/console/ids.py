"""Cells of ids that lead to their pages: transactions, clients, topics, partitions, groups, links.

*Invariants*: each kind of id leads to the same page wherever it is shown; a long one is shortened
by the style sheet only, so that a copy is the whole.
"""

from stilltide.pipeline.console.views import NOTHING, Cell, address
from stilltide.pipeline.core.status.findings import Subject, SubjectKind
from stilltide.schemas.values import ClusterName, TopicPartition

TRANSACTIONS, TOPICS, GROUPS, LINKS = "transactions", "topic", "groups", "links"
"""Names of the pages to which ids lead."""


def txn_cell(cluster: ClusterName, txn: str, *, note: str = "") -> Cell:
    """A coordinated transaction."""
    return Cell(txn, "code", note=note, href=address(TRANSACTIONS, cluster=cluster, txn=txn))


def client_cell(cluster: ClusterName, client: str) -> Cell:
    """A client of coordinated transactions, by its transactions; empty: none."""
    if not client:
        return Cell(NOTHING, "soft")
    return Cell(client, "id", href=address(TRANSACTIONS, cluster=cluster, text=client))


def topic_cell(cluster: ClusterName, topic: str) -> Cell:
    """A topic."""
    return Cell(topic, "id", href=address(TOPICS, cluster=cluster, topic=topic))


def partition_cell(
    cluster: ClusterName, data: TopicPartition, offset: int | None = None, *, command: str = ""
) -> Cell:
    """A partition, or the record at an offset of it."""
    chosen = {"cluster": cluster, "topic": data.topic, "partition": data.partition}
    text = str(data) if offset is None else f"{data}@{offset}"
    return Cell(text, "code", command=command, href=address(TOPICS, **chosen, offset=offset))


def group_cell(cluster: ClusterName, group: str, *, note: str = "") -> Cell:
    """A consumer group."""
    return Cell(group, "id", note=note, href=address(GROUPS, cluster=cluster, group=group))


def link_cell(target: ClusterName, source: str) -> Cell:
    """A link or publish into a cluster."""
    return Cell(source, "id", href=address(LINKS, cluster=target, link=source))


def subject_cell(cluster: ClusterName, subject: Subject) -> Cell:
    """What a finding is about."""
    match subject.kind:
        case SubjectKind.TRANSACTION:
            return txn_cell(cluster, subject.name)
        case SubjectKind.GROUP:
            return group_cell(cluster, subject.name)
        case SubjectKind.LINK:
            return link_cell(cluster, subject.name)
        case SubjectKind.TOPIC:
            if subject.partition is None:
                return topic_cell(cluster, subject.name)
            data = TopicPartition(subject.name, subject.partition)
            return partition_cell(cluster, data, subject.offset)
