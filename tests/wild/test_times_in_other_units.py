"""Times of other people's producers that count in microseconds or nanoseconds.

A user of another reader saw `long overflow` for a record whose producer had written nanoseconds for
milliseconds. Brokers before Kafka 4.0 take such records, and later ones where a topic lets them.
"""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stilltide.connectors.errors import FatalError
from stilltide.connectors.spark.errors import spark_errors
from stilltide.pipeline.cli.common.output import utc
from stilltide.pipeline.cli.native import producer_rows
from stilltide.pipeline.core.status.asks import Ask, Records, RecordsAsk
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.schemas.native.transactions import ActiveProducer
from stilltide.schemas.values import TopicPartition
from tests.support.console.answers import ANSWERS
from tests.support.console.pages import shown
from tests.support.console.states import STATES
from tests.support.foreign_producer import ForeignRecord, write_foreign
from tests.support.links.copied import create
from tests.support.spark.topics import create_topics

NOW_MS = 1_764_000_000_000
TIMES = (NOW_MS * 1_000, NOW_MS * 1_000_000, 2**63 - 1)
PAGE = "/topic?cluster=a&topic=orders&partition=3"


@pytest.mark.parametrize("at_ms", TIMES)
def test_the_console_shows_the_record(at_ms: int):
    """Its number in place of a time; the records beside it as ever."""

    def answer(ask: Ask) -> Any:
        given = ANSWERS["busy"](ask)
        if not isinstance(ask, RecordsAsk):
            return given
        records = given.value
        assert isinstance(records, Records)
        odd = records.records[0]._replace(at_ms=at_ms)
        return replace(given, value=records._replace(records=(odd, *records.records[1:])))

    page = shown(PAGE, STATES["busy"], answer)
    assert f"{at_ms:,} ms" in page
    assert page.count("behind the year 9999") == 1


@pytest.mark.parametrize("at_ms", TIMES)
def test_commands_list_the_producer(at_ms: int):
    """`stilltide native producers` has its last write as a number."""
    data, producer = TopicPartition("orders", 0), ActiveProducer(47, 3, 118, at_ms, 12, None)
    (row,) = producer_rows({data: [producer]}, NOW_MS)
    assert row["last_write_at"] == f"{at_ms} ms"
    assert utc(NOW_MS) == "2025-11-24T16:00:00.000+00:00"


async def test_a_read_by_spark_says_what_it_met(
    bootstrap: str, topic_name: str, spark: SparkSession
):
    """And what to do: Spark's own words are `long overflow`."""
    await create(bootstrap, topic_name, message_timestamp_after_max_ms=str(2**63 - 1))
    create_topics(bootstrap, {})
    write_foreign(bootstrap, topic_name, [ForeignRecord(), ForeignRecord(timestamp_ms=TIMES[1])])
    with pytest.raises(FatalError, match="cannot hold the timestamp"), spark_errors(bootstrap):
        read_committed(spark, bootstrap, [topic_name]).collect()
