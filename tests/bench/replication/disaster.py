"""A cluster dies with groups on it, they go on at the other, and come back when it is back.

2000 records a second are written to `a`; a group of our `Subscription` and one of any client read
and commit them ten times a second. Then `a` is killed (SIGKILL), and in the same moment the
application turns to `b`: it writes there, and its groups read there. Once `a` is back and each
cluster has what the other one had when it came back, everything returns to `a`. Each turn comes
twice, under load and after three seconds in which nothing was written. `mirrormaker` is a group of
any client that MirrorMaker 2 carries over once a second; MirrorMaker has no way back. Its copies
have other names, so that the group reads two topics at `b`: the copy, and the one of the writer.

- `on_s`: from the turn until the group was given a record that it had not been given before.
- `lost`: records that `a` had acknowledged and `b` did not have while `a` was away.
- `again`: records that were given to the group again.
- `uncommitted`: offsets that the group had passed before the turn without an acknowledged commit;
  they are read again, however the group is carried over.
- `skipped`: records below what the group has committed that were never given to it.
- `start_s`, `copy_s`: how long the broker `a` took to serve again, and from then on until `b` had
  what was lost.

Sizes: ROUNDS, LOAD_S (seconds before each turn).
"""

import asyncio
import time
from typing import Any, NamedTuple

from stilltide.pipeline.cli.common.output import say
from stilltide.schemas.values import ClusterName, TopicPartition
from tests.bench.harness import looks, report, size
from tests.bench.replication.copiers import (
    EVERY_SECOND,
    Pair,
    create,
    mirror_command,
    running,
    running_pair,
)
from tests.bench.replication.disaster_load import Group, Writer, seen_on, skipped_by
from tests.bench.replication.replicated import enable
from tests.chaos.groups.mesh import PARTITIONS, Mesh

PER_S = 2000
SILENCE_S = 3.0
AFTER_S = 5.0
"""What a group reads where it went on before it is judged."""

START_S = 300.0
"""A broker that was killed reads its logs again before it serves; on a busy machine, for long."""

LOOK_S = 0.2
MIRROR = "mm"

Found = dict[tuple[str, str, bool], list["Turn"]]


class Turn(NamedTuple):
    """One group at one turn."""

    on_s: float
    lost: int
    again: int
    skipped: int
    uncommitted: int
    start_s: float = 0.0
    copy_s: float = 0.0


async def run() -> None:
    """Measures and reports."""
    rounds, load_s = size("ROUNDS", 3), size("LOAD_S", 15)
    found: Found = {}
    with running_pair() as pair:
        for turn in range(rounds):
            await _ours(pair, f"ours-{turn}", load_s, found)
            say(f"disaster: round {turn + 1} of {rounds}: groups of Stilltide")
            await _mirrored(pair, turn, load_s, found)
            say(f"disaster: round {turn + 1} of {rounds}: MirrorMaker")
    report("disaster", [_row(*place, turns) for place, turns in found.items()])


async def _ours(pair: Pair, topic: str, load_s: int, found: Found) -> None:
    directory = pair.directory / topic
    directory.mkdir()
    groups = [Group(f"{topic}-subscription", ours=True), Group(f"{topic}-foreign", ours=False)]
    async with Mesh([pair.a, pair.b], directory, topic, in_workers=False):
        await enable(pair, topic, *(one.name for one in groups))
        scene = _Scene(pair, topic, Writer(topic, PARTITIONS, PER_S), groups)
        scene.go_to(pair.a.bootstrap)
        try:
            for quiet in (False, True):
                await _past(load_s)
                for group, turn in zip(groups, await scene.disaster(quiet=quiet), strict=True):
                    _note(found, (_kind(group), "out", quiet), turn)
                await _past(load_s)
                for group, turn in zip(groups, await scene.come_back(quiet=quiet), strict=True):
                    _note(found, (_kind(group), "back", quiet), turn)
        finally:
            await scene.close()


async def _mirrored(pair: Pair, turn: int, load_s: int, found: Found) -> None:
    for quiet in (False, True):
        topic, alias = f"mirrored-{turn}-{quiet:d}", f"{MIRROR}-{turn}-{quiet:d}"
        for one in (pair.a, pair.b):
            await create(one.bootstrap, topic)
        command = mirror_command(pair, alias, topic, EVERY_SECOND)
        group = Group(f"{topic}-group", ours=False)
        scene = _Scene(pair, topic, Writer(topic, 1, PER_S), [group], prefix=f"{alias}.")
        with running(command, pair.directory / f"{alias}.log"):
            scene.go_to(pair.a.bootstrap)
            try:
                await _until_mirrored(pair, f"{alias}.{topic}")
                await _past(load_s)
                (seen,) = await scene.disaster(quiet=quiet)
                _note(found, ("mirrormaker", "out", quiet), seen)
            finally:
                await scene.close()
                await asyncio.to_thread(pair.a.start, START_S)


class _Scene:
    """An application on one of two clusters: its writer and its groups.

    Args:
        pair: of clusters.
        topic: what it writes and reads.
        writer: its writer.
        groups: its groups.
        prefix: what the copy on `b` has before its name.
    """

    def __init__(
        self, pair: Pair, topic: str, writer: Writer, groups: list[Group], prefix: str = ""
    ) -> None:
        self._pair, self._topic, self._writer, self._groups = pair, topic, writer, groups
        self._copy = f"{prefix}{topic}"
        self._at_b = sorted({self._copy, topic})

    def go_to(self, bootstrap: str) -> None:
        """Writes and reads there from now on."""
        at_b = bootstrap == self._pair.b.bootstrap
        self._writer.go_to(bootstrap)
        for group in self._groups:
            group.go_to(bootstrap, self._at_b if at_b else [self._topic])

    async def close(self) -> None:
        """Ends everything; both brokers may be there or not."""
        self._writer.rest()
        await asyncio.gather(*(group.close() for group in self._groups))

    async def disaster(self, *, quiet: bool) -> list[Turn]:
        """Kills `a`, and goes to `b`."""
        a, b = self._pair.a, self._pair.b.bootstrap
        if quiet:
            await self._silence()
        acked = self._writer.acked[a.bootstrap]
        await asyncio.to_thread(a.kill)
        written = set(acked)
        uncommitted = [group.leg.uncommitted for group in self._groups]
        await self._turn(b)
        await self._judge_later()
        lost = len(written - await seen_on(b, self._data(self._copy)))
        found = [await self._turned(group, b, self._at_b, lost) for group in self._groups]
        return [turn._replace(uncommitted=it) for turn, it in zip(found, uncommitted, strict=True)]

    async def come_back(self, *, quiet: bool) -> list[Turn]:
        """Starts `a`, and goes back to it once `b` has all that `a` had."""
        a, b = self._pair.a, self._pair.b.bootstrap
        began = time.perf_counter()
        await asyncio.to_thread(a.start, START_S)
        began_copying = time.perf_counter()
        await self._copied(a.bootstrap, b)
        copied = time.perf_counter()
        await self._copied(b, a.bootstrap)
        await _past(AFTER_S)
        if quiet:
            await self._silence()
        await asyncio.gather(*(group.leave() for group in self._groups))
        uncommitted = [group.leg.uncommitted for group in self._groups]
        await self._turn(a.bootstrap)
        await self._judge_later()
        turns = [await self._turned(one, a.bootstrap, [self._topic], 0) for one in self._groups]
        start_s, copy_s = began_copying - began, copied - began_copying
        return [
            one._replace(uncommitted=it, start_s=start_s, copy_s=copy_s)
            for one, it in zip(turns, uncommitted, strict=True)
        ]

    async def _copied(self, source: str, target: str) -> None:
        """Returns once one cluster has all that the other one has acknowledged up to now."""
        acked = set(self._writer.acked[source])
        async for _ in looks(LOOK_S, wait_s=600.0):
            if acked <= await seen_on(target, self._data(self._topic)):
                return

    async def _silence(self) -> None:
        self._writer.rest()
        await self._writer.flush()
        await _past(SILENCE_S)

    async def _turn(self, bootstrap: str) -> None:
        self.go_to(bootstrap)
        async for _ in looks(LOOK_S):
            if all(group.leg.went_on for group in self._groups):
                return

    async def _judge_later(self) -> None:
        await _past(AFTER_S)

    async def _turned(self, group: Group, bootstrap: str, topics: list[str], lost: int) -> Turn:
        leg = group.leg
        skipped = await skipped_by(group, bootstrap, self._data(*topics))
        return Turn(leg.went_on - leg.began, lost, leg.again, skipped, 0)

    def _data(self, *topics: str) -> list[TopicPartition]:
        count = PARTITIONS if self._topic == self._copy else 1
        return [TopicPartition(topic, number) for topic in topics for number in range(count)]


async def _until_mirrored(pair: Pair, copy: str) -> None:
    """Returns once MirrorMaker copies; its start takes long."""
    admin, data = pair.connectors[ClusterName("b")].admin(), TopicPartition(copy, 0)
    try:
        async for _ in looks(LOOK_S):
            if (await admin.end_offsets([data])).get(data):
                return
    finally:
        await admin.close()


async def _past(seconds: float) -> None:
    async for elapsed_s in looks(seconds):
        if elapsed_s >= seconds:
            return


def _note(found: Found, place: tuple[str, str, bool], turn: Turn) -> None:
    found.setdefault(place, []).append(turn)
    say(f"disaster: {_row(*place, [turn])}")


def _kind(group: Group) -> str:
    return "subscription" if group.ours else "foreign"


def _row(system: str, way: str, quiet: bool, turns: list[Turn]) -> dict[str, Any]:  # noqa: FBT001 - a key of the table
    return {
        "group": system,
        "way": way,
        "before": "silence" if quiet else "load",
        "on_s_max": max(one.on_s for one in turns),
        "lost_max": max(one.lost for one in turns),
        "again_max": max(one.again for one in turns),
        "again_s_max": max(one.again for one in turns) / PER_S,
        "uncommitted_max": max(one.uncommitted for one in turns),
        "skipped": sum(one.skipped for one in turns),
        "start_s_max": max(one.start_s for one in turns),
        "copy_s_max": max(one.copy_s for one in turns),
        "turns": len(turns),
    }
