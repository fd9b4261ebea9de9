"""Families of replicated groups: bounded, and the figures of the controllers."""

from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.drivers.groups import controller
from tests.support.groups.clusters import DATA, Site, replicated

VALUES = [b"%d" % number for number in range(10)]


def registry(site: Site) -> CollectorRegistry:
    """What its worker would show."""
    made = CollectorRegistry()
    made.register(site.metrics)
    return made


def of_group(site: Site, name: str, group: str = "g") -> float | None:
    """A sample of a group."""
    labels = {"cluster": site.name, "topic": DATA.topic, "partition": "0", "group": group}
    return registry(site).get_sample_value(f"stilltide_subscription_{name}", labels)


def of_snapshots(site: Site, name: str) -> float | None:
    """A sample of the data partition."""
    labels = {"cluster": site.name, "topic": DATA.topic, "partition": "0"}
    return registry(site).get_sample_value(f"stilltide_replication_snapshots_{name}", labels)


def standing(site: Site, standing: Standing) -> float | None:
    """How many groups stand so."""
    labels = {"cluster": site.name, "standing": standing.name.lower()}
    return registry(site).get_sample_value("stilltide_replicated_subscriptions", labels)


async def test_snapshots_are_counted_and_timed():
    """I4: each that is durable, with how long it took; none is pending in the end."""
    async with replicated("ab", "g") as sites:
        a = sites["a"]
        assert of_snapshots(a, "completed_total") is None, "it does not serve yet"
        a.write(*VALUES)
        await sites.until(lambda: bool(of_snapshots(a, "completed_total")))
        await sites.until(lambda: of_snapshots(a, "pending") == 0)
        taken = of_snapshots(a, "completed_total")
        name = "stilltide_replication_snapshot_seconds_count"
        assert registry(a).get_sample_value(name, {"cluster": "a"}) == taken
        assert of_snapshots(a, "timed_out_total") == 0


async def test_what_was_not_carried_over_is_shown_until_it_is():
    """I6, I7: on the one side nobody was told, on the other everything comes again; then not."""
    async with AsyncExitStack() as stack:
        sites = await stack.enter_async_context(replicated("ab", "g"))
        a, b = sites["a"], sites["b"]
        a.write(*VALUES)
        await sites.until(lambda: len(b.values()) == 10)
        member = b.connector.group_reader("m", "g")
        await member.subscribe([DATA.topic], assigned=lambda _: None, revoked=lambda _: None)
        stack.push_async_callback(member.close)
        a.commit("g", 4)
        await sites.until(lambda: of_group(b, "read_again_records") == 4)
        await sites.until(lambda: standing(b, Standing.ACTIVE) == 1)
        await sites.until(lambda: of_group(a, "update_lag_records") == 0)
        assert of_group(a, "update_lag_seconds") == 0
        a.commit("g", 1000)
        await sites.until(lambda: of_group(a, "update_lag_records") == 996)
        await sites.until(lambda: (of_group(a, "update_lag_seconds") or 0) > 0)
        assert standing(a, Standing.BEYOND_THE_END) == 1
        await member.close()
        await sites.until(lambda: b.committed("g") == 4)
        await sites.until(lambda: of_group(b, "read_again_records") == 0)


async def test_only_some_replicated_groups_are_named(monkeypatch: pytest.MonkeyPatch):
    """No label without bound: the first by name; the counts by standing have all of them."""
    monkeypatch.setattr(controller, "GROUPS_MAX", 2)
    async with replicated("ab", "g", "h", "i", "j") as sites:
        a = sites["a"]
        a.named = {(DATA.topic, group, group != "g") for group in "ghij"}
        a.write(*VALUES)
        for group in "ghij":
            a.commit(group, 4)
        await sites.until(lambda: of_group(a, "read_again_records", "i") is not None)
        found = [of_group(a, "update_lag_records", group) for group in "ghij"]
        assert [one is None for one in found] == [True, False, False, True]
        assert sum(standing(a, one) or 0 for one in Standing) == 3
