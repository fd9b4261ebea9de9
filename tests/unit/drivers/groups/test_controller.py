"""Controllers on clusters in memory: claims out, positions in.

Rules I.
"""

import asyncio
from collections.abc import Hashable

import pytest

from stilltide.connectors.errors import ActiveGroupError, FatalError
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.pending_ack.cursor import Cursor, encode
from stilltide.pipeline.drivers.groups import controller
from stilltide.pipeline.drivers.groups.controller import SIGNALS_MAX
from stilltide.pipeline.drivers.groups.report import (
    LAG_MAX,
    Standpoint,
    describe_group,
    fail_over,
    reason,
    require_group,
)
from stilltide.pipeline.drivers.links.offset_translation import translate
from stilltide.pipeline.errors import ConfigError, RefusedError, UnknownGroupError
from stilltide.schemas.replication.origins import origin_of
from stilltide.schemas.replication.signals import (
    PositionSnapshotResponse,
    PositionSnapshots,
    ResponseKey,
    UpdateKey,
)
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range
from tests.support.groups.clusters import DATA, Site, Sites, replicated

NUMBERS = [b"%d" % number for number in range(30)]


async def describe(sites: Sites, group: str = "g") -> dict[str, Standpoint]:
    """By cluster."""
    found = await describe_group(sites.connectors, DATA.topic, group, timeout_s=10)
    return {one.cluster: one for one in found}


async def read(sites: Sites, cluster: str, count: int, group: str = "g") -> list[bytes | None]:
    """What a member of ours is given there; it commits all of it."""
    found: list[bytes | None] = []
    async with Subscription(
        [DATA.topic], group=group, connector=sites[cluster].connector
    ) as subscription:
        while len(found) < count:
            found.append((await anext(subscription)).value)
        await subscription.commit()
    return found


async def carried_over(sites: Sites) -> tuple[Site, Site]:
    """Both sites, once ten records are written to `a` and a group that has read six is on `b`."""
    a, b = sites["a"], sites["b"]
    a.write(*NUMBERS[:10])
    a.commit("g", 6)
    await sites.until(lambda: b.committed("g") == 6)
    return a, b


async def test_a_group_is_carried_over():
    """I6, I7: what a group has read here it need not read there."""
    async with replicated("ab", "g") as sites:
        a, b = await carried_over(sites)
        a.commit("g", 10)
        await sites.until(lambda: b.committed("g") == 11)  # behind the control record


async def test_signals_wait_while_the_queue_of_the_writer_is_full():
    """Many partitions share the queue: no ownership ends, and no signal is lost."""
    groups = [f"g{number}" for number in range(2 * SIGNALS_MAX)]
    async with replicated("ab", *groups, queue=3) as sites:
        a, b = sites["a"], sites["b"]
        drivers = [site.driver for site in (a, b) if site.driver is not None]
        await sites.until(lambda: all(driver.serving for driver in drivers))
        ownerships = [driver.owned for driver in drivers]
        a.write(*NUMBERS)
        for group in groups:
            a.commit(group, len(NUMBERS))
        await sites.until(lambda: len(b.applied()) == len(groups))
        assert {key.group for key, _ in b.updates() if isinstance(key, UpdateKey)} == {*groups}
        assert [driver.owned for driver in drivers] == ownerships


async def test_what_a_group_reads_again_is_counted_after_changes_only():
    """I16: at rest a count neither reads the log nor asks the brokers."""
    async with replicated("ab", "g") as sites:
        a, b = await carried_over(sites)
        assert b.driver is not None
        assert b.driver.owned is not None
        one = b.driver.owned.partitions[DATA]

        def stands_at() -> int | None:
            seen = one.machine.groups["g"].seen
            return None if seen is None else seen.offset

        await sites.until(lambda: stands_at() == 6)

        def inputs() -> Hashable:
            found = one.machine.read_again("g")
            return found and found[0]

        before = None
        while before != inputs():
            before = inputs()
            await one.measure("g")
        assert one.read_again["g"] == 0
        with pytest.raises(StopIteration):  # it ends without waiting for anything
            one.measure("g").send(None)
        a.commit("g", 8)
        await sites.until(lambda: inputs() != before)


async def test_a_step_that_does_not_end_begins_again(monkeypatch: pytest.MonkeyPatch):
    """The ownership ends, with its clients; else nothing would be carried over any more."""
    monkeypatch.setattr(controller, "STUCK_S", 0.05)
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        assert a.driver is not None
        first = a.driver.owned
        a.broker.hold(REPLICATION_MARKERS)
        a.write(*NUMBERS[:10])
        a.commit("g", 6)
        await sites.until(lambda: a.driver is not None and a.driver.owned is not first)
        a.broker.release()
        await sites.until(lambda: b.committed("g") == 6)


async def test_a_group_is_carried_over_by_snapshots():
    """I12: to what a snapshot that it has passed says, and the operator is told what is left."""
    async with replicated("ab", "g", mode=SyncMode.SNAPSHOT) as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        await sites.until(
            lambda: any(
                isinstance(value, PositionSnapshots) and value.snapshots[-1].local_end == 10
                for key, value in a.markers()
                if key.source == "a"
            )
        )
        a.write(*NUMBERS[10:12])
        a.commit("g", 11)
        await sites.until(lambda: b.committed("g") is not None and len(b.values()) == 12)
        there = (await describe(sites))["b"]
        assert there.seen.offset is not None
        passed = b.visible(0, there.seen.offset)
        assert 10 <= len(passed) <= 11
        assert there.read_again == 11 - len(passed)


async def test_three_clusters_and_a_controller_that_dies():
    """I7: a group advances everywhere; another controller goes on from the markers."""
    async with replicated("abc", "g") as sites:
        a, b, c = (sites[name] for name in "abc")
        a.write(*NUMBERS[:5])
        c.write(*NUMBERS[5:10])
        await sites.until(lambda: len(b.values()) == 10)
        b.commit("g", b.end())
        await b.kill()
        await b.start()
        await sites.until(lambda: a.committed("g") == a.end())
        await sites.until(lambda: c.committed("g") == c.end())
        await sites.unlink("a", "b")
        a.write(*NUMBERS[10:20])
        a.commit("g", a.end())
        await c.kill()
        await sites.until(lambda: len(c.values()) == 20)
        sites.link("a", "b")
        await c.start()
        await sites.until(lambda: c.committed("g") == c.end())
        await sites.until(lambda: b.committed("g") == b.end())


async def test_a_disabled_group_is_left_alone_until_it_is_enabled():
    """Whatever other clusters say of it; then it is carried over as if it had always been."""
    async with replicated("ab", "g", "h") as sites:
        a, b = sites["a"], sites["b"]
        b.named = {(DATA.topic, "g", False)}
        a.write(*NUMBERS[:10])
        a.commit("g", 7)
        a.commit("h", 3)
        await sites.until(lambda: b.committed("h") == 3)
        assert b.committed("g") is None
        b.named = {(DATA.topic, "g", True)}
        await sites.until(lambda: b.committed("g") == 7)


async def test_a_group_with_members_is_not_moved_until_they_leave():
    """I7: an active group keeps its offset; nothing it has read is lost on the way."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        await sites.until(lambda: len(b.values()) == 10)
        member = b.connector.group_reader("m", "g")
        await member.subscribe([DATA.topic], assigned=lambda _: None, revoked=lambda _: None)
        a.commit("g", 8)
        await sites.until(lambda: any(key.source == "a" for key, _ in b.updates()))
        assert b.committed("g") is None
        for target in ("a", "b"):
            with pytest.raises(ActiveGroupError, match=f"go on at {target}, and has members on b"):
                await fail_over(
                    *(sites.connectors, DATA.topic, "g", ClusterName(target)),
                    dry_run=True,
                    timeout_s=5,
                )
        await member.close()
        await sites.until(lambda: b.committed("g") == 8)


async def test_acknowledgements_above_the_offset_survive_a_move():
    """G, I11: `a=` is kept as far as it lies above, and the generation stands beside it."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        await sites.until(lambda: len(b.values()) == 10)
        ranges = (Range(Offset(1), EndOffset(3)), Range(Offset(6), EndOffset(8)))
        b.commit("g", 0, encode(Cursor(Offset(0), ranges)))
        a.commit("g", 4)
        await sites.until(lambda: b.committed("g") == 4)
        kept = encode(Cursor(Offset(4), ranges[1:], ("g=0",)))
        assert b.broker.group("g").committed[DATA] == Committed(Offset(4), kept)


async def test_an_answer_counts_what_was_written_before_its_request_was_read():
    """I3: a decided end from before the request would miss records that a link has copied."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        for number in NUMBERS:
            b.write(number)
            end = b.end()
            asked = len([1 for key, _ in b.markers() if isinstance(key, ResponseKey)])
            a.write(number)

            def answered(asked: int = asked, end: int = end) -> bool:
                ends = [
                    value.decided_end
                    for key, value in b.markers()
                    if isinstance(key, ResponseKey) and isinstance(value, PositionSnapshotResponse)
                    if key.source == "b"
                ]
                return len(ends) > asked // 2 and ends[-1] >= end

            await sites.until(answered)


async def test_our_members_read_nothing_again_after_a_fail_over():
    """I11: exactly what was not read yet comes, although both clusters are written to."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        b.write(*NUMBERS[10:20])
        await sites.until(lambda: len(a.values()) == len(b.values()) == 20)
        first = await read(sites, "a", 13)
        before = await describe(sites)
        assert before["b"].read_again <= before["b"].read_again_foreign
        done = await fail_over(
            sites.connectors, DATA.topic, "g", ClusterName("b"), dry_run=False, timeout_s=20
        )
        assert done.complete
        assert [one.read_again for one in done.target] == [0]
        rest = await read(sites, "b", 7)
        assert sorted(first + rest) == sorted(NUMBERS[:20])  # pyright: ignore[reportArgumentType]
        a.write(NUMBERS[20])
        assert await read(sites, "b", 1) == [NUMBERS[20]]


async def test_a_copy_of_a_cluster_that_no_claim_names_is_not_skipped():
    """I11: it is no local record, although claims of local ones may span its offset."""
    async with replicated("abc", "g") as sites:
        a, b, c = (sites[name] for name in "abc")
        await sites.unlink("c", "a")
        c.write(*NUMBERS[:3])
        await sites.until(lambda: len(b.values()) == 3)
        a.write(NUMBERS[3])
        await sites.until(lambda: len(b.values()) == 4)
        assert await read(sites, "a", 1) == [NUMBERS[3]]
        await sites.until(lambda: b.committed("g") is not None)
        assert await read(sites, "b", 3) == NUMBERS[:3]


async def test_what_is_not_carried_over_yet_is_counted():
    """A cluster that has heard nothing: every record read elsewhere would be read again."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        await sites.until(lambda: len(b.values()) == 10)
        await a.kill()
        a.commit("g", 6)
        found = await describe(sites)
        assert (found["b"].read_again, found["b"].read_again_foreign) == (6, 6)
        assert found["a"].read_again == 0
        await sites.unlink("a", "b")
        a.write(*NUMBERS[10:14])
        a.commit("g", 14)
        assert (await describe(sites))["b"].read_again == 14
        dry = await fail_over(
            sites.connectors, DATA.topic, "g", ClusterName("b"), dry_run=True, timeout_s=20
        )
        assert not dry.complete
        assert [one.read_again for one in dry.target] == [14]
        await a.start()
        sites.link("a", "b")
        await sites.until(lambda: b.committed("g") == b.end())
        assert (await describe(sites))["b"].read_again == 0


async def test_an_operator_is_told_why_a_group_does_not_advance():
    """What is nearest to the cause comes first; each line names the next step."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]

        async def why(*disabled: str) -> str:
            found = (await describe(sites))["b"]
            return reason(found, disabled=[ClusterName(one) for one in disabled])

        a.write(*NUMBERS[:10])
        await sites.until(lambda: len(b.values()) == 10)
        assert "no update of the group has come from a" in await why()
        assert "group enable orders" in await why("b")
        member = b.connector.group_reader("m", "g")
        await member.subscribe([DATA.topic], assigned=lambda _: None, revoked=lambda _: None)
        a.commit("g", 4)
        await sites.until(lambda: any(key.source == "a" for key, _ in b.updates()))
        assert "the group has members" in await why()
        await member.close()
        await sites.until(lambda: b.committed("g") == 4)
        found = (await describe(sites))["b"]
        assert "the next record here was not read elsewhere" in reason(found, disabled=[])
        behind = found._replace(links={ClusterName("a"): LAG_MAX + 1})
        assert "the link from a has 10001 offsets left to copy" in reason(behind, disabled=[])
        unlinked = found._replace(links={ClusterName("a"): None})
        assert "replicate --from a --to b" in reason(unlinked, disabled=[])


async def test_unknown_clusters_and_topics_are_refused():
    """The error names what is missing, and where."""
    async with replicated("ab", "g") as sites:
        with pytest.raises(ConfigError, match="'c'"):
            await fail_over(
                sites.connectors, DATA.topic, "g", ClusterName("c"), dry_run=True, timeout_s=5
            )
        with pytest.raises(FatalError, match="cluster a"):
            await describe_group(sites.connectors, "absent", "g", timeout_s=5)


async def test_a_group_that_nobody_knows_is_refused():
    """A name with a slip has nothing to read again anywhere: that must not pass for in sync."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        await sites.until(lambda: len(b.values()) == 10)
        found = list((await describe(sites, "slip")).values())
        with pytest.raises(UnknownGroupError, match="no such group: slip") as caught:
            require_group(found, DATA.topic, "slip")
        assert (caught.value.topic, "on a, b" in caught.value.detail) == (DATA.topic, True)
        with pytest.raises(UnknownGroupError, match="no such group: slip"):
            await fail_over(
                sites.connectors, DATA.topic, "slip", ClusterName("b"), dry_run=True, timeout_s=5
            )


async def test_a_group_is_known_by_members_a_commit_or_an_update():
    """Each of them is enough, on one cluster: a group that has just begun is no slip."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        await sites.until(lambda: len(b.values()) == 10)
        member = b.connector.group_reader("m", "joined")
        await member.subscribe([DATA.topic], assigned=lambda _: None, revoked=lambda _: None)
        a.commit("committed", 0)
        a.commit("g", 4)
        await sites.until(lambda: any(key.source == "a" for key, _ in a.updates()))
        for group in ("joined", "committed", "g"):
            found = list((await describe(sites, group)).values())
            require_group(found, DATA.topic, group)
        told = [it._replace(seen=it.seen._replace(offset=None, active=False)) for it in found]
        require_group(told, DATA.topic, "g")
        await member.close()


async def test_every_offset_is_translated_exactly():
    """H3: to the first copy at or above, whatever lies between; refused where none is yet."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        for number in NUMBERS:
            a.write(number)
            b.write(number)
            await asyncio.sleep(0)
        await sites.until(lambda: len(a.values()) == len(b.values()) == 60)
        copies = {
            origin.offset: record.offset
            for record in b.broker.records(DATA)
            if (origin := origin_of(record.headers)) is not None
        }
        ends = sites.connectors[ClusterName("a")], sites.connectors[ClusterName("b")]
        names = ClusterName("a"), ClusterName("b")
        for offset in range(max(copies) + 1):
            found = await translate(*ends, names, DATA, Offset(offset), timeout_s=10)
            origin = min(one for one in copies if one >= offset)
            assert found == (copies[origin], origin)
        with pytest.raises(RefusedError, match="not copied yet"):
            await translate(*ends, names, DATA, Offset(a.end() + 1), timeout_s=10)
