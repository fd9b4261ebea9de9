"""Audits, frames and tables of topics that hold whatever bytes other programs have written.

What a user saw: a subscription ended at a header name in Latin-1 where an audit had read on. So the
two have to see the same: what is delivered, what is withheld, and how many.
"""

import asyncio
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Message, Subscription
from stilltide.pipeline.core.read_committed.machine import Statistics
from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.report import Check, FindingKind
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.pipeline.jobs.tables.append import append_committed
from stilltide.schemas.digest import content_digest
from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.values import EndOffset, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.foreign_producer import ForeignRecord, write_foreign

WAIT_S = 120.0
CHECKS = {Check.HEADERS, Check.ORPHANS, Check.LATE, Check.ATOMICITY}
SEEN, HIDDEN = TxnId(0, 1), TxnId(0, 2)
LATIN, NAME = b"stra\xdfe", TXN.encode()
ODD = [
    ForeignRecord(b"plain"),
    ForeignRecord(b"latin", None, [(LATIN, b"1"), (LATIN, b"\xff")]),
    ForeignRecord(None, b"", [(b"", b"nameless")], 0),
    ForeignRecord(b"", b"\x00", [(b"nul\x00", b"\x00")], -1),
    ForeignRecord(b"1969", None, [(b"origin", b"https://shop.example/cart")], -5000),
    ForeignRecord(b"committed", b"k", [(LATIN, b""), (NAME, SEEN.to_bytes())]),
    ForeignRecord(b"aborted", b"k", [(NAME, HIDDEN.to_bytes()), (LATIN, b"")]),
    ForeignRecord(b"upper", b"k", [(NAME.upper(), HIDDEN.to_bytes())]),
    ForeignRecord(b"accent", b"k", [(b"txn\xff", HIDDEN.to_bytes())]),
    *(
        ForeignRecord(b"malformed", b"k", [(LATIN, b"1"), (NAME, value)])
        for value in (b"", b"order-17", "order-17!".encode("utf-16"), b"\xff" * 17)
    ),
    ForeignRecord(b"twice", b"k", [(NAME, SEEN.to_bytes()), (NAME, SEEN.to_bytes())]),
    ForeignRecord(b"last", b"k"),
]


async def prepare(bootstrap: str, topic: str) -> tuple[list[Message], Statistics]:
    """Writes the topic; what a subscription delivers of it, and its counts."""
    made = await CoordinatedTopic.create(KafkaConnector(KafkaConfig(bootstrap)), topic, 1)
    write_foreign(bootstrap, topic, ODD)
    await made.commit(0, SEEN, len(ODD))
    await made.abort(0, HIDDEN)
    end = {made.at(0): EndOffset(len(ODD))}
    subscription = Subscription([topic], group=topic, bootstrap_servers=bootstrap)
    async with asyncio.timeout(WAIT_S), subscription as records:
        seen = [it async for it in records.read_to(end)]
        counts = records.statistics()[made.at(0)]
    await made.close()
    return seen, counts


def shown(headers: Headers | None) -> list[tuple[str, bytes]] | None:
    """Headers of a message as Spark has them: Java replaces what is not UTF-8 in a name."""
    found = [
        (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), value or b"")
        for name, value in headers or ()
        if name != TXN
    ]
    return found or None


def rows(frame: DataFrame) -> list[tuple[bytes | None, bytes | None, object]]:
    """Keys, values and headers of a frame by offset; names as readers have them (D9)."""
    return [
        (
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.headers and [(it.key.split("\x00")[0], bytes(it.value)) for it in row.headers],
        )
        for row in frame.orderBy("offset").collect()
    ]


def test_an_audit_sees_what_a_subscription_sees(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """D3, D9: the same records, counts and digest; frames and tables show their headers."""
    seen, counts = asyncio.run(prepare(bootstrap, topic_name))
    assert [it.value for it in seen] == [
        *(it.value for it in ODD[:6]),
        b"upper",
        b"accent",
        b"last",
    ]
    report = run_audit(bootstrap, AuditPlan([topic_name], checks=CHECKS, digest=True))
    (partition,) = report.partitions
    audited = partition.records
    assert (audited.visible, audited.malformed, audited.hidden) == (
        len(seen),
        counts.malformed,
        counts.hidden,
    )
    assert audited.digest == content_digest((it.key, it.value) for it in seen)
    assert set(report.finding_counts) == {FindingKind.MALFORMED}

    wanted = [(it.key, it.value, shown(it.headers)) for it in seen]
    frame = read_committed(spark, bootstrap, [topic_name], headers=True)
    assert rows(frame) == wanted
    target = tmp_path / "table"
    assert append_committed(spark, bootstrap, [topic_name], f"parquet:{target}", headers=True) == 1
    assert rows(spark.read.parquet(str(target))) == wanted
