"""The writer of exact copies (H11) against the usual one, for a publish and a link.

Two topics of records of 100 bytes in one partition: one that librdkafka copies as it is, and one
with a record of timestamp 0 among each 10 000, which keeps the writer of exact copies at work.
Each is copied by a publish within cluster a and by a link from a to b, in turn within one run, into
topics of their own. Rates are of the target's log, from a tenth of the records on to the last.

Sizes: RECORDS, ROUNDS.
"""

import asyncio
from itertools import product
from statistics import median
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.output import say
from stilltide.schemas.values import TopicPartition
from tests.bench.harness import Run, middle, report, rotated, size
from tests.bench.replication.copiers import create, fill, link_command, running_pair
from tests.bench.replication.link import COPIER, copied_per_s
from tests.bench.replication.publish import publish_command
from tests.bench.spent import cpu_us
from tests.support.foreign_producer import ForeignRecord, write_foreign

ODD_EACH = 10_000
"""Fewer than the records without a reason for it, after which the usual writer comes back."""

USUAL, EXACT = "usual", "exact"
PUBLISH, LINK = "publish", "link"


async def run() -> None:
    """Measures and reports."""
    records, rounds = size("RECORDS", 200_000), size("ROUNDS", 3)
    results: dict[tuple[str, str], list[Run]] = {
        it: [] for it in product((PUBLISH, LINK), (USUAL, EXACT))
    }
    with running_pair() as pair:
        a, b = pair.a.bootstrap, pair.b.bootstrap
        admins = {
            way: KafkaConnector(KafkaConfig(it)).admin() for way, it in ((PUBLISH, a), (LINK, b))
        }
        for turn in range(rounds):
            for way, writer in rotated(list(results), turn):
                topic = f"bench-{turn}-{way}-{writer}"
                await create(a, topic)
                await asyncio.to_thread(_fill, a, topic, records, odd=writer == EXACT)
                copied = topic if way == LINK else f"{topic}.committed"
                command = link_command(pair, topic)
                if way == PUBLISH:
                    command = publish_command(pair, topic, copied)
                copies = [TopicPartition(copied, 0)]
                found, _ = await copied_per_s(admins[way], pair, command, copies, records)
                say(f"round {turn + 1}: {way}, {writer}: {found.per_s:,.0f}/s, {found.cpu_us}")
                results[way, writer].append(found)
        for admin in admins.values():
            await admin.close()
    report(
        "exact", [_row(way, results[way, EXACT], results[way, USUAL]) for way in (PUBLISH, LINK)]
    )


def _fill(bootstrap: str, topic: str, records: int, *, odd: bool) -> None:
    for first in range(0, records, ODD_EACH):
        if odd:
            write_foreign(bootstrap, topic, [ForeignRecord(timestamp_ms=0)])
        fill(bootstrap, topic, first + odd, first + ODD_EACH)


def _row(way: str, exact: list[Run], usual: list[Run]) -> dict[str, Any]:
    return {
        "way": way,
        "exact_per_s": middle(exact, "per_s"),
        "usual_per_s": middle(usual, "per_s"),
        "ratio": median(one.per_s / other.per_s for one, other in zip(exact, usual, strict=True)),
        "exact_cpu_us": cpu_us(exact, COPIER),
        "usual_cpu_us": cpu_us(usual, COPIER),
    }
