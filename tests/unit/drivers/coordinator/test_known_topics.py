"""C16, C18: which partitions may be registered, and how old a policy may be that counts."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from stilltide.connectors.errors import NotAuthorizedError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.pipeline.drivers.coordinator.known_topics import (
    POLICY_AGE_S,
    POLICY_RENEWED_S,
    KnownTopics,
    Missing,
)
from stilltide.schemas.service.envelopes import RefusalCode, Refused
from stilltide.schemas.topics import CLEANUP_POLICY, TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import until

ORDERS = TopicPartition("orders", 0)
OTHERS = [TopicPartition("payments", 0), TopicPartition("refunds", 0)]
MISSING = TopicPartition("orders", 2)
HIDDEN = "DescribeConfigs is not allowed"


class Rig:
    """Known topics on a memory broker, with a clock of its own and a count of questions."""

    def __init__(self, broker: MemoryBroker, connector: MemoryConnector) -> None:
        self.broker = broker
        self.now_s = 1000.0
        self.asked: list[list[str]] = []
        self.hidden: set[str] = set()
        self.away = False
        self._admin = connector.admin()
        self.topics = KnownTopics(self, lambda: self.now_s)  # type: ignore[arg-type]

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """As the admin, which is away at times."""
        self.asked.append(list(names))
        if self.away:
            raise RetriableError("the cluster is away")
        return await self._admin.describe_topics(names)

    async def topic_configs(self, names: Sequence[str]) -> dict[str, Mapping[str, str | None]]:
        """As the admin, without the right to see some topics' configs."""
        if self.hidden & set(names):
            raise NotAuthorizedError(
                HIDDEN, operation="DescribeConfigs", resource="topic orders", principal="User:w"
            )
        return await self._admin.topic_configs(names)

    def policy(self, value: str) -> None:
        """Sets the policy of the topic `orders`."""
        self.broker.topics["orders"].alter({CLEANUP_POLICY: value})

    async def register(
        self, *partitions: TopicPartition, allow_compacted: bool = False
    ) -> Refused | Missing | None:
        """What a registration of these partitions comes to."""
        unknown = self.topics.unknown(partitions, allow_compacted=allow_compacted)
        if not unknown:
            return None
        told: list[Refused | Missing | None] = []
        self.topics.look(unknown, told.append, allow_compacted=allow_compacted)
        await until(lambda: told)
        return told[0]


@pytest.fixture
async def rig(broker: MemoryBroker, connector: MemoryConnector) -> AsyncIterator[Rig]:
    """Three topics, and a look at topics that runs."""
    for name in ("orders", *(it.topic for it in OTHERS)):
        broker.create_topic(TopicSpec(name, 2))
    made = Rig(broker, connector)
    running = asyncio.create_task(made.topics.run())
    yield made
    running.cancel()


def code(finding: Refused | Missing | None) -> RefusalCode:
    """Why a registration is refused."""
    assert isinstance(finding, Refused)
    return finding.code


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
async def test_a_topic_that_compacts_is_refused(rig: Rig, policy: str):
    """C18: the reason names topic, cause and next step; a client that answers for it may."""
    rig.policy(policy)
    refused = await rig.register(ORDERS, *OTHERS)
    assert code(refused) is RefusalCode.COMPACTED
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("orders: the topic compacts")
    assert "stilltide publish" in refused.reason
    assert await rig.register(*OTHERS) is None
    assert await rig.register(ORDERS, allow_compacted=True) is None
    assert code(await rig.register(ORDERS)) is RefusalCode.COMPACTED


async def test_a_changed_policy_is_noticed_within_its_age(rig: Rig):
    """C18: a policy counts for half a minute at most, and one that was changed back counts now."""
    assert await rig.register(ORDERS) is None
    rig.policy("compact")
    rig.now_s += POLICY_AGE_S
    assert rig.topics.unknown([ORDERS]) == []
    rig.now_s += 1
    assert code(await rig.register(ORDERS)) is RefusalCode.COMPACTED
    rig.policy("delete")
    assert await rig.register(ORDERS) is None


async def test_registrations_of_a_busy_topic_never_wait(rig: Rig):
    """C18: an older policy is looked at in the background, together with others."""
    assert await rig.register(ORDERS, *OTHERS) is None
    for _ in range(5):
        rig.now_s += POLICY_RENEWED_S + 1
        before = len(rig.asked)
        assert rig.topics.unknown([ORDERS, *OTHERS]) == []
        await until(lambda before=before: len(rig.asked) > before)
        assert rig.asked[before:] == [["orders", "payments", "refunds"]]


async def test_nobody_asks_while_nobody_registers(rig: Rig):
    """C18: policies that grow old cost nothing."""
    assert await rig.register(ORDERS) is None
    before = len(rig.asked)
    rig.now_s += 3600
    assert await rig.register(OTHERS[0]) is None
    assert rig.asked[before:] == [["payments"]]


async def test_a_policy_that_may_not_be_seen_is_refused(rig: Rig):
    """C17, C18: the missing right is the reason; other topics of the same look are not affected."""
    rig.hidden = {"orders"}
    refused, other = await asyncio.gather(rig.register(ORDERS), rig.register(*OTHERS))
    assert isinstance(refused, Refused)
    assert refused.reason == HIDDEN
    assert other is None
    assert await rig.register(ORDERS, allow_compacted=True) is None
    rig.hidden = set()
    assert await rig.register(ORDERS) is None


async def test_a_right_that_is_taken_away_is_noticed(rig: Rig):
    """C18: what was seen counts for its age, and no longer."""
    assert await rig.register(ORDERS) is None
    rig.hidden = {"orders"}
    assert rig.topics.unknown([ORDERS]) == []
    rig.now_s += POLICY_AGE_S + 1
    assert isinstance(await rig.register(ORDERS), Refused)


async def test_a_partition_that_does_not_exist_is_refused(rig: Rig):
    """C16: also beside one that exists; the partition is found once the topic has grown."""
    refused = await rig.register(ORDERS, MISSING)
    assert isinstance(refused, Refused)
    assert refused == Refused("orders/2 does not exist", RefusalCode.MALFORMED)
    rig.broker.add_partitions("orders", 3)
    assert await rig.register(ORDERS, MISSING) is None


async def test_a_cluster_that_is_away_refuses_nobody(rig: Rig):
    """C16, C18: the client repeats its request; an old policy counts for nothing meanwhile."""
    assert await rig.register(ORDERS) is None
    rig.away, rig.now_s = True, rig.now_s + POLICY_AGE_S + 1
    assert isinstance(await rig.register(ORDERS), Missing)
    rig.away = False
    assert await rig.register(ORDERS) is None
