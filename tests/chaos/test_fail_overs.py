"""Fail-overs at random moments: nothing unread is skipped, and no more is read again than was said.

Clusters in memory, with the links and controllers of production; some of them die meanwhile.
Rules I.
"""

import asyncio
import os
from collections import Counter
from random import Random

import pytest

from stilltide.pipeline.client import Subscription
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.drivers.groups.report import Standpoint, describe_group
from stilltide.schemas.values import EndOffset
from tests.support.groups.clusters import DATA, Site, Sites, replicated

FAIL_OVERS = max(50, int(os.environ.get("ROUNDS", "0")))
"""Of each world; there are four."""

LOOKS_ALIKE = 50
"""So many looks that show the same: nothing is under way any more."""


class Campaign:
    """A group that goes from cluster to cluster."""

    def __init__(self, sites: Sites, random: Random, *, ours: bool) -> None:
        self.sites, self.random, self.ours = sites, random, ours
        self.names = list(sites.sites)
        self.at = self.names[0]
        self.written = 0
        self.read: set[bytes] = set()
        self.again = 0

    def write(self):
        """Some records somewhere."""
        for name in self.names:
            count = self.random.choice((0, 0, 1, 5, 20))
            self.sites[name].write(*(b"%d" % (self.written + n) for n in range(count)))
            self.written += count

    async def disturb(self):
        """Time passes; a link or a controller may die."""
        await self.time()
        match self.random.randrange(8):
            case 0:
                name = self.random.choice(self.names)
                await self.sites[name].kill()
                await self.sites[name].start()
            case 1:
                source, target = self.random.sample(self.names, 2)
                await self.sites.unlink(source, target)
                self.sites.link(source, target)
            case 2:
                await self.outage()
            case 3:
                await self.forgotten()

    async def outage(self):
        """The cluster that the group reads on is away for some time; it goes on elsewhere."""
        struck = self.sites[self.at].broker
        said = await self.said()
        struck.down()
        await self.time()
        self.at = self.random.choice([one for one in self.names if one != self.at])
        await self.consume_within(said[self.at])
        await self.time()
        struck.up()

    async def forgotten(self):
        """A cluster that the group does not read on, and whose word is out, forgets the group.

        Not if the group's last commit was below the offset to which it had just been moved: that is
        a reset by hand, and nothing is carried there before the group has read on (I10). Nor if it
        has to read again what lies behind a record that it has not read (I8): whether all words are
        out does not show then.
        """
        name = self.random.choice([one for one in self.names if one != self.at])
        alike: Counter[tuple[object, ...]] = Counter()
        async with asyncio.timeout(60):
            while True:
                others = [one for one in await self.described() if one.cluster != name]
                if any(one.standing is Standing.RESET_BY_HAND for one in others):
                    return
                if not any(one.read_again for one in others):
                    break
                look = tuple((one.seen, one.updated, one.read_again) for one in others)
                alike[look] += 1
                if alike[look] == LOOKS_ALIKE:
                    return
        self.sites[name].broker.group("g").committed.clear()

    async def time(self):
        """Some passes."""
        for _ in range(self.random.randrange(60)):
            await asyncio.sleep(0)

    async def consume(self, share: float) -> int:
        """Reads a share of what there is; how many of them had been read before."""
        site = self.sites[self.at]
        end = site.stable_end()
        begin = site.committed("g") or 0
        until = begin + round((end - begin) * share)
        found = await self._ours(site, until) if self.ours else self._foreign(site, until)
        again = len([one for one in found if one in self.read])
        self.read.update(found)
        return again

    async def _ours(self, site: Site, until: int) -> list[bytes]:
        found: list[bytes] = []
        async with Subscription([DATA.topic], group="g", connector=site.connector) as subscription:
            async for message in subscription.read_to({DATA: EndOffset(until)}):
                assert message.value is not None
                found.append(message.value)
            await subscription.commit()
        return found

    def _foreign(self, site: Site, until: int) -> list[bytes]:
        """A consumer of any client that names its partition itself."""
        found = site.visible(site.committed("g") or 0, until)
        site.commit("g", until)
        return found

    async def fail_over(self):
        """To another cluster, without waiting for anything."""
        self.at = self.random.choice([one for one in self.names if one != self.at])
        await self.consume_within((await self.said())[self.at])

    async def said(self) -> dict[str, int]:
        """How much it would read again on each cluster, as an operator is told."""
        return {
            one.cluster: one.read_again if self.ours else one.read_again_foreign
            for one in await self.described()
        }

    async def described(self) -> list[Standpoint]:
        """What an operator is told."""
        return await describe_group(self.sites.connectors, DATA.topic, "g", timeout_s=20)

    async def consume_within(self, most: int):
        """Reads some, no more again than that; nothing below it was passed over."""
        again = await self.consume(self.random.random())
        assert again <= most, f"{again} read again on {self.at}, {most} said"
        self.again += again
        site = self.sites[self.at]
        assert set(site.visible(0, site.committed("g") or 0)) <= self.read

    def exact(self) -> bool:
        """Whether the group stands at the first unread record on every cluster."""
        for site in self.sites.sites.values():
            at, end = site.committed("g") or 0, site.stable_end()
            if not set(site.visible(0, at)) <= self.read or self.read.issuperset(
                site.visible(at, end)[:1] or [b"unread"]
            ):
                return False
        return True


@pytest.mark.timeout(600 + 5 * FAIL_OVERS)
@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_fail_overs(names: str, ours: bool):  # noqa: FBT001 - a parameter of the test
    """Every measured re-read was announced, and at the end everything has been read."""
    random = Random(f"{os.environ.get('SEED', '1')}-{names}-{ours}")
    async with replicated(names, "g") as sites:
        campaign = Campaign(sites, random, ours=ours)
        for _ in range(FAIL_OVERS):
            campaign.write()
            await campaign.disturb()
            await campaign.consume(random.random())
            await campaign.disturb()
            await campaign.fail_over()
        everything = {b"%d" % number for number in range(campaign.written)}
        last = sites[campaign.at]
        await sites.until(lambda: set(last.values()) == everything)
        await sites.until(campaign.exact)
        await campaign.consume(1.0)
        assert campaign.read == everything
        await sites.until(campaign.exact)
        print(f"{names} ours={ours}: {campaign.again} of {campaign.written} read again")  # noqa: T201
