"""How many records a group reads again after it failed over, lagging by this much and by that.

Beside each other, in the same run, at each lag:
- `subscription`: a group of our `Subscription`, while both clusters take records and links copy
  both ways, so that the two logs are in different orders. It reads up to its lag on `a`, and the
  rest on `b`.
- `foreign`: a group of any client, copied one way; what it reads again follows from the offset that
  it has on `b`.
- `mirrormaker`: the same topic and the same offset, carried over by MirrorMaker's checkpoints once
  a second; it is given time until its offset on `b` has not moved for five seconds.

Records are counted by the number that they bear. Those that are skipped unread are counted too, and
`told` is what `stilltide group failover` said of the foreign group.

Sizes: RECORDS, ROUNDS.
"""

import asyncio
import time
from typing import Any, NamedTuple

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.drivers.groups.report import FailOver, fail_over
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition
from tests.bench.harness import looks, report, size
from tests.bench.replication.copiers import (
    EVERY_SECOND,
    Pair,
    create,
    fill,
    mirror_command,
    running,
    running_pair,
)
from tests.bench.replication.replicated import (
    Committed,
    VisibleLog,
    commit_on_a,
    enable,
    replicated,
)

LAGS = (0, 1_000, 10_000, 100_000, 500_000)
"""In a million records; of fewer, as many times fewer."""

STRETCH = 1_000
"""What a Subscription reads on `a`."""

LOOK_S = 0.2
STILL_S = 5.0
FAIL_OVER_S = 300.0
"""A group that is new to a cluster walks over its whole log first."""

NEVER_S = 60.0
"""A group that has not come by then does not: its members begin at the log start."""

MIRROR = "mm"
B = ClusterName("b")


class Counted(NamedTuple):
    """Of one fail-over: records read again, and skipped unread."""

    again: int
    skipped: int


async def run() -> None:
    """Measures and reports."""
    records, rounds = size("RECORDS", 1_000_000), size("ROUNDS", 3)
    lags = [lag * records // 1_000_000 for lag in LAGS]
    found: dict[int, list[dict[str, Any]]] = {lag: [] for lag in lags}
    with running_pair() as pair:
        for turn in range(rounds):
            for cluster in (pair.a, pair.b):
                await create(cluster.bootstrap, f"both-{turn}")
            await create(pair.a.bootstrap, f"lone-{turn}")
        mirror = mirror_command(pair, MIRROR, "lone-.*", EVERY_SECOND)
        links = {"ab": ["lone-*", "both-*"], "ba": ["both-*"]}
        with running(mirror, pair.directory / "mirror.log"):
            async with replicated(pair, links):
                for turn in range(rounds):
                    await _round(_Round(pair, turn, records), found)
                    say(f"failover: round {turn + 1} of {rounds}")
    report("failover", [_row(lag, counts) for lag, counts in found.items()])


class _Round:
    """One topic copied one way, by us and by MirrorMaker, and one both ways."""

    def __init__(self, pair: Pair, turn: int, records: int) -> None:
        self.pair, self.turn, self.records = pair, turn, records
        self.lone, self.both = f"lone-{turn}", f"both-{turn}"
        self.remote = f"{MIRROR}.{self.lone}"

    async def fill(self) -> dict[tuple[str, str], VisibleLog]:
        """Writes everything; the logs by cluster and topic, once everything is copied."""
        a, b, half = self.pair.a.bootstrap, self.pair.b.bootstrap, self.records // 2
        await asyncio.gather(
            asyncio.to_thread(fill, a, self.lone, 0, self.records),
            asyncio.to_thread(fill, a, self.both, 0, half),
            asyncio.to_thread(fill, b, self.both, half, self.records),
        )
        places = [("a", self.lone), ("a", self.both), ("b", self.lone), ("b", self.both)]
        places.append(("b", self.remote))
        say("failover: written")
        return {place: await self._whole(*place) for place in places}

    async def _whole(self, cluster: str, topic: str) -> VisibleLog:
        """The log once it holds everything."""
        connector = self.pair.connectors[ClusterName(cluster)]
        admin, data = connector.admin(), TopicPartition(topic, 0)
        try:
            async for _ in looks(LOOK_S):
                end = (await admin.end_offsets([data], committed=True)).get(data, 0)
                if end >= self.records:
                    log = await asyncio.to_thread(VisibleLog, self.pair.bootstrap(cluster), topic)
                    if len(log.numbers) >= self.records:
                        return log
            raise AssertionError
        finally:
            await admin.close()


async def _round(this: _Round, found: dict[int, list[dict[str, Any]]]) -> None:
    pair, logs = this.pair, await this.fill()
    lone = logs["a", this.lone]
    say("failover: copied")
    ours = {lag: f"ours-{this.turn}-{lag}" for lag in found}
    foreign = {lag: f"foreign-{this.turn}-{lag}" for lag in found}
    mirrored = {lag: f"mirrored-{this.turn}-{lag}" for lag in found}
    await enable(pair, this.lone, *foreign.values())
    await enable(pair, this.both, *ours.values())
    read: dict[int, set[int]] = {}
    for lag in found:
        offset = lone.offset_leaving(lag)
        await commit_on_a(pair, this.lone, mirrored[lag], offset)
        await commit_on_a(pair, this.lone, foreign[lag], offset)
        read[lag] = await _read_on_a(this, logs["a", this.both], ours[lag], lag)
    say("failover: committed on a")
    rested = [_rested(pair, this.remote, mirrored[lag]) for lag in found]
    at_mirrored = dict(zip(found, await asyncio.gather(*rested), strict=True))
    say(f"failover: mirrored: {at_mirrored}")
    for lag, rows in found.items():
        below = set(lone.numbers[: lone.count_below(lone.offset_leaving(lag))])
        told = await _failed_over(pair, this.lone, foreign[lag])
        began = time.perf_counter()
        await _failed_over(pair, this.both, ours[lag])
        took_s = time.perf_counter() - began
        at_foreign = await asyncio.to_thread(_committed, pair, this.lone, foreign[lag])
        rows.append(
            {
                "subscription": await _read_on_b(this, logs["b", this.both], ours[lag], read[lag]),
                "foreign": _counted(logs["b", this.lone], at_foreign, below),
                "mirrormaker": _counted(logs["b", this.remote], at_mirrored[lag], below),
                "told": sum(one.read_again_foreign for one in told.target),
                "took_s": took_s,
            }
        )
        say(f"failover: lag {lag}: {rows[-1]}")


async def _read_on_a(this: _Round, log: VisibleLog, group: str, lag: int) -> set[int]:
    """A Subscription reads until it lags by so many; all that the group has read."""
    stretch = min(STRETCH, len(log.numbers) - lag)
    begin = len(log.numbers) - lag - stretch
    if begin:
        await commit_on_a(this.pair, this.both, group, log.offsets[begin])
    read = set(log.numbers[:begin])
    connector = this.pair.connectors[ClusterName("a")]
    async with Subscription([this.both], group=group, connector=connector) as subscription:
        for _ in range(stretch):
            read.add(int((await anext(subscription)).value or b""))
        await subscription.commit()
    return read


async def _read_on_b(this: _Round, log: VisibleLog, group: str, read: set[int]) -> Counted:
    """A Subscription reads the rest."""
    connector = this.pair.connectors[B]
    end = {TopicPartition(this.both, 0): EndOffset(log.offsets[-1] + 1)}
    again, rest = 0, set[int]()
    async with Subscription([this.both], group=group, connector=connector) as subscription:
        async for message in subscription.read_to(end):
            number = int(message.value or b"")
            again += number in read or number in rest
            rest.add(number)
    return Counted(again, this.records - len(read | rest))


async def _failed_over(pair: Pair, topic: str, group: str) -> FailOver:
    done = await fail_over(pair.connectors, topic, group, B, dry_run=False, timeout_s=FAIL_OVER_S)
    assert done.complete, done
    return done


def _committed(pair: Pair, topic: str, group: str) -> int:
    asked = Committed(pair.b.bootstrap, topic, group)
    try:
        return max(0, asked.now())
    finally:
        asked.close()


async def _rested(pair: Pair, topic: str, group: str) -> int:
    """The offset on `b` once it moves no more."""
    asked = Committed(pair.b.bootstrap, topic, group)
    seen, since_s = -1, 0.0
    try:
        async for elapsed_s in looks(LOOK_S):
            now = await asyncio.to_thread(asked.now)
            if now != seen:
                seen, since_s = now, elapsed_s
            rested = seen >= 0 and elapsed_s - since_s > STILL_S
            if rested or elapsed_s > NEVER_S:
                break
    finally:
        asked.close()
    return max(0, seen)


def _counted(log: VisibleLog, offset: int, read: set[int]) -> Counted:
    at = log.count_below(offset)
    again = sum(number in read for number in log.numbers[at:])
    return Counted(again, len(set(log.numbers[:at]) - read))


def _row(lag: int, counts: list[dict[str, Any]]) -> dict[str, Any]:
    mirrored = [one["mirrormaker"].again for one in counts]
    return {
        "lag": lag,
        "subscription": max(one["subscription"].again for one in counts),
        "foreign": max(one["foreign"].again for one in counts),
        "mirrormaker_min": min(mirrored),
        "mirrormaker_max": max(mirrored),
        "skipped": sum(one[of].skipped for one in counts for of in ("subscription", "foreign")),
        "told": max(one["told"] for one in counts),
        "took_s": max(one["took_s"] for one in counts),
    }
