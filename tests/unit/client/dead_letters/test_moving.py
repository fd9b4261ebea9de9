"""G2: dead letters are listed, replayed and dropped, each exactly once."""

import asyncio

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.client.dead_letters import moving
from stilltide.pipeline.client.dead_letters.moving import (
    Selection,
    group_of,
    letters_of,
    move,
    plan,
)
from stilltide.pipeline.errors import DeadLetterError
from stilltide.schemas.pending_ack.dead_letters import DeadLetterHeaders, encode
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_client import TOPICS

DEAD = "dead"
ORIGIN = TopicPartition(TOPICS[0], 2)
WAIT_S = 10.0
EVERYTHING = Selection()


def headers(number: int) -> list[tuple[str, bytes]]:
    """Headers of a dead letter, with one of the application."""
    letter = DeadLetterHeaders(ORIGIN, Offset(number), 5, "g", 3, "why")
    return [("own", b"%d" % number), *encode(letter)]


@pytest.fixture
async def dead_letters(broker: MemoryBroker, client: TransactionClient) -> None:
    """Five dead letters in partition 0, one in partition 1."""
    broker.create_topic(TopicSpec(DEAD, 2))
    async with client.transaction() as txn:
        for number in range(6):
            await txn.send(
                DEAD, b"%d" % number, key=b"k", headers=headers(number), partition=number // 5
            )
        await txn.commit(wait_visible=True)


async def listed(connector: MemoryConnector, selection: Selection = EVERYTHING) -> list[int]:
    """The values of the dead letters that are listed."""
    reading = letters_of(connector, DEAD, selection, timeout_s=WAIT_S)
    return [int(it.record.value or b"") async for it in reading]


async def replayed(connector: MemoryConnector) -> list[Message]:
    """All that is visible where the dead letters came from."""
    admin = connector.admin()
    ends = await admin.end_offsets([ORIGIN])
    async with Subscription([ORIGIN.topic], group="look", connector=connector) as subscription:
        return [it async for it in subscription.read_to(ends)]


async def moved(
    connector: MemoryConnector,
    selection: Selection = EVERYTHING,
    *,
    replay: bool = True,
) -> int:
    """Plans and moves."""
    planned = await plan(connector, DEAD, selection, timeout_s=WAIT_S)
    async with asyncio.timeout(WAIT_S):
        return await move(connector, planned, replay=replay)


@pytest.mark.usefixtures("dead_letters")
async def test_a_replay_sends_every_message_back_once(connector: MemoryConnector):
    """Value, key and the application's headers are those of before; a second replay sends none."""
    assert sorted(await listed(connector)) == [0, 1, 2, 3, 4, 5]
    assert await moved(connector) == 6
    assert await listed(connector) == []
    assert await moved(connector) == 0
    found = await replayed(connector)
    assert sorted(it.value or b"" for it in found) == [b"%d" % it for it in range(6)]
    for message in found:
        assert message.key == b"k"
        assert [it for it in message.headers or () if it[0] != "txn"] == [("own", message.value)]


@pytest.mark.usefixtures("dead_letters")
@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (Selection(partition=1), [5]),
        (Selection(partition=0, limit=2), [0, 1]),
        (Selection(partition=0, offset=3), [3]),
        (Selection(partition=0, offset=99), []),
    ],
)
async def test_only_what_is_selected_is_moved(
    connector: MemoryConnector, selection: Selection, selected: list[int]
):
    """The others stay, and are moved by a later command."""
    assert await listed(connector, selection) == selected
    assert await moved(connector, selection, replay=False) == len(selected)
    left = [it for it in range(6) if it not in selected]
    assert sorted(await listed(connector)) == left
    assert await replayed(connector) == []
    assert await moved(connector) == len(left)
    assert sorted(int(it.value or b"") for it in await replayed(connector)) == left


@pytest.mark.usefixtures("dead_letters")
async def test_a_plan_changes_nothing(broker: MemoryBroker, connector: MemoryConnector):
    """It counts by partition and origin; the group has no position afterwards."""
    planned = await plan(connector, DEAD, Selection(), timeout_s=WAIT_S)
    assert planned.counts == {(0, ORIGIN.topic): 5, (1, ORIGIN.topic): 1}
    assert not broker.group(group_of(connector, DEAD)).committed


@pytest.mark.usefixtures("dead_letters")
async def test_what_comes_after_the_plan_is_not_moved(
    connector: MemoryConnector, client: TransactionClient
):
    """Only dead letters that were shown are touched."""
    planned = await plan(connector, DEAD, Selection(), timeout_s=WAIT_S)
    async with client.transaction() as txn:
        await txn.send(DEAD, b"7", headers=headers(7), partition=0)
        await txn.commit(wait_visible=True)
    assert await move(connector, planned, replay=True) == 6
    assert await listed(connector) == [7]


@pytest.mark.usefixtures("dead_letters")
async def test_a_foreign_record_is_not_replayed_and_can_be_dropped(
    connector: MemoryConnector, client: TransactionClient
):
    """The error names its place; nothing was moved before it."""
    async with client.transaction() as txn:
        await txn.send(DEAD, b"7", partition=1)
        await txn.send(DEAD, b"8", headers=[("dead-letter.topic", b"a b")], partition=0)
        await txn.commit(wait_visible=True)
    with pytest.raises(DeadLetterError, match="no dead letter"):
        await moved(connector)
    assert len(await listed(connector)) == 8
    assert await moved(connector, replay=False) == 8


@pytest.mark.usefixtures("dead_letters")
async def test_a_topic_that_is_gone_ends_the_command_with_the_place(
    connector: MemoryConnector, client: TransactionClient, monkeypatch: pytest.MonkeyPatch
):
    """What was moved before stays moved; the dead letter that cannot go back stays, too."""
    monkeypatch.setattr(moving, "BATCH_RECORDS", 1)
    letter = DeadLetterHeaders(TopicPartition("gone", 0), Offset(7), None, "g", 3, "why")
    async with client.transaction() as txn:
        await txn.send(DEAD, b"7", headers=encode(letter), partition=1)
        await txn.commit(wait_visible=True)
    with pytest.raises(DeadLetterError, match="gone/0") as refused:
        await moved(connector, Selection(partition=1))
    assert (refused.value.partition, refused.value.offset) == (1, 1)
    assert refused.value.hint.startswith("create it first, or drop the dead letter")
    assert await listed(connector, Selection(partition=1)) == [7]


async def test_a_message_whose_topic_compacts_has_a_way_on(
    connector: MemoryConnector, broker: MemoryBroker, client: TransactionClient
):
    """C18: its topic exists already, and no transaction writes there."""
    broker.create_topic(TopicSpec(DEAD, 2))
    broker.create_topic(TopicSpec("latest", 1, {"cleanup.policy": "compact"}))
    letter = DeadLetterHeaders(TopicPartition("latest", 0), Offset(7), None, "g", 3, "why")
    async with client.transaction() as txn:
        await txn.send(DEAD, b"7", headers=encode(letter), partition=1)
        await txn.commit(wait_visible=True)
    with pytest.raises(DeadLetterError, match="latest/0") as refused:
        await moved(connector)
    assert "create" not in refused.value.hint
    assert refused.value.hint.startswith("send the message by a producer without coordinated")
    assert "`stilltide dead-letter drop`" in refused.value.hint
    assert await moved(connector, replay=False) == 1


@pytest.mark.usefixtures("dead_letters")
async def test_a_partition_that_does_not_exist_is_named(connector: MemoryConnector):
    """The error says which partitions there are."""
    with pytest.raises(DeadLetterError, match="0 to 1"):
        await listed(connector, Selection(partition=2))
