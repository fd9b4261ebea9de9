"""Judges of tables: what a table holds, against what an audit says that a reader may see."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import digest_of_sums, digest_sums
from stilltide.pipeline.jobs.audits.plan import COORDINATED, AuditPlan
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.values import TopicPartition


class Content(NamedTuple):
    """Number and digest of the visible records of a partition."""

    records: int
    digest: int


def held(frame: DataFrame) -> dict[TopicPartition, Content]:
    """What a table holds, which has no offset twice."""
    high, low = digest_sums(F.lit(True))
    rows = (
        frame.groupBy("topic", "partition")
        .agg(F.count("*"), F.countDistinct("offset"), high, low)
        .collect()
    )
    for topic, number, count, distinct, *_ in rows:
        assert count == distinct, f"{topic}/{number} holds {count - distinct} records twice"
    return {
        TopicPartition(topic, number): Content(count, digest_of_sums(high, low))
        for topic, number, count, _, high, low in rows
    }


def audited(bootstrap: str, topics: Sequence[str]) -> Mapping[TopicPartition, Content]:
    """What an audit counts as visible, of partitions with visible records."""
    report = run_audit(bootstrap, AuditPlan(topics, checks=COORDINATED, digest=True))
    found = {
        TopicPartition(one.records.topic, one.records.partition): Content(
            one.records.visible, one.records.digest or 0
        )
        for one in report.partitions
    }
    return {data: content for data, content in found.items() if content.records}
