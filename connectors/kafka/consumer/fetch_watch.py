"""Detects from librdkafka's own statistics that a consumer is stuck.

*Source*: librdkafka's STATISTICS.md, and its issues 5301 and 5511: a client that receives an answer
without brokers while it looks for brokers may stop looking. The client then reads nothing, and
reports no error.

*Invariants*: a partition counts as served while records arrive, and also at its end: a broker
answers a fetch within `fetch.wait.max.ms`, with or without records. Reports that arrive together,
after a long call on the consumer's thread, are out of date and count as one look.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from stilltide.schemas.values import TopicPartition

LOOKS = 3
"""Looks in a row that show a stuck consumer; more than one, as a leader may just be changing."""


class FetchWatch:
    """Looks at the statistics of one consumer.

    Args:
        period_s: time between two looks.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._looked_s = -math.inf
        self._missed: dict[str, int] = {}

    def look(
        self, statistics: str, fetched: Collection[TopicPartition], now_s: float
    ) -> str | None:
        """What has been missing for `LOOKS` looks, as text for the log; None if nothing.

        Args:
            statistics: one report of the client, as JSON.
            fetched: the partitions that the client should fetch now, without paused ones.
            now_s: the time of a monotonic clock.
        """
        if now_s - self._looked_s < self._period_s / 2:
            return None
        self._looked_s = now_s
        found = json.loads(statistics)
        brokers = [it for it in found["brokers"].values() if it["source"] != "logical"]
        heard = {it["nodeid"] for it in brokers if 0 <= it["rxidle"] < self._period_s * 1e6}
        missing = [] if brokers else ["it knows of no broker"]
        missing += [
            f"no broker serves {data}"
            for data in fetched
            if not _is_served(_partition(found, data), heard)
        ]
        self._missed = {text: self._missed.get(text, 0) + 1 for text in missing}
        return next((text for text, count in self._missed.items() if count >= LOOKS), None)


def _partition(found: Mapping[str, Any], data: TopicPartition) -> Mapping[str, Any]:
    """The statistics of a partition; empty if the client does not know the partition yet."""
    topic = found["topics"].get(data.topic, {"partitions": {}})
    return topic["partitions"].get(str(data.partition), {})


def _is_served(partition: Mapping[str, Any], heard: Collection[int]) -> bool:
    # With enough records fetched ahead, the client sends no fetch.
    return partition.get("fetchq_cnt", 0) > 0 or (
        partition.get("fetch_state") == "active" and partition.get("broker") in heard
    )
