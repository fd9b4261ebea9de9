"""Whether a consumer is stuck, told from librdkafka's own statistics.

*Source*: librdkafka's STATISTICS.md; its issues 5301 and 5511: a client that was told of no brokers
while it looked for them may look no more. It says nothing then, and reads nothing.

*Invariants*: a partition that is read, or stands at its end, is served: a broker answers a fetch
within `fetch.wait.max.ms`, with or without records. Looks that come together, after a call that
kept the consumer's thread, are of the past and count as one.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from stilltide.schemas.values import TopicPartition

LOOKS = 3
"""So many in a row show that a consumer is stuck; between two a partition may change its leader."""


class FetchWatch:
    """Looks at the statistics of one consumer.

    Args:
        period_s: between two looks.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._looked_s = -math.inf
        self._missed: dict[str, int] = {}

    def look(
        self, statistics: str, fetched: Collection[TopicPartition], now_s: float
    ) -> str | None:
        """What has been missing for `LOOKS` looks, for people.

        Args:
            statistics: one report of the client.
            fetched: what it should fetch by now; what is paused is not.
            now_s: on a clock that only goes forward.
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
    """What is said of a partition; nothing, if it is not known yet."""
    topic = found["topics"].get(data.topic, {"partitions": {}})
    return topic["partitions"].get(str(data.partition), {})


def _is_served(partition: Mapping[str, Any], heard: Collection[int]) -> bool:
    # With records in hand the client asks for no more.
    return partition.get("fetchq_cnt", 0) > 0 or (
        partition.get("fetch_state") == "active" and partition.get("broker") in heard
    )
