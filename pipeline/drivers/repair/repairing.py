"""Finds and repairs damage of a system topic: what `stilltide repair` does.

*Source*: docs/protocols B10.
*Invariants*: records of a topic that is written in native transactions are written under the id of
the partition's owner, so that an owner that still writes is fenced and begins again; then it reads
what was written here. Damage that has been replaced meanwhile is not touched.
"""

from collections.abc import Collection, Sequence

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import NewRecord
from stilltide.connectors.ports.writers import append
from stilltide.pipeline.drivers.repair import keyed_topics, logs
from stilltide.pipeline.drivers.repair.judging import CHECKS, Damage
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.schemas.topics import ABORTED_INDEX, TXN_SNAPSHOTS
from stilltide.schemas.values import TopicPartition

TOPICS = (*logs.KINDS, *CHECKS)
"""The topics in which damage ends an owner; records of the others are passed over."""

_OWNERS = {TXN_SNAPSHOTS: "snapshots", ABORTED_INDEX: "aborted-index"}


async def find(
    connector: Connector, admin: LogAdmin, topic: str, partition: int | None, now_ms: int
) -> list[Damage]:
    """The damage of a topic, or of one partition; nothing is written.

    Raises:
        FatalError: the topic or partition does not exist.
        StilltideError: a log that cannot be understood even without its damage.
        RetriableError: the cluster is away.
    """
    described = await admin.describe_topics([topic])
    require_topics([topic], described)
    numbers = range(described[topic].partition_count) if partition is None else [partition]
    damage: list[Damage] = []
    for number in numbers:
        log = TopicPartition(topic, number)
        if topic in logs.KINDS:
            damage += await logs.find_damage(connector, admin, log, now_ms)
        else:
            damage += await keyed_topics.find_damage(connector, admin, log)
    return damage


async def repair(
    connector: Connector, admin: LogAdmin, damage: Sequence[Damage], now_ms: int
) -> list[Damage]:
    """Repairs what `find` has found and can be repaired; returns what was repaired.

    Raises:
        FencedError: an owner has begun meanwhile: call again.
        StilltideError: as `find`.
    """
    done: list[Damage] = []
    for log in dict.fromkeys(one.place for one in damage if one.repairable):
        chosen = {one.record.offset for one in damage if one.place == log and one.repairable}
        if log.topic in logs.KINDS:
            done += await logs.repair_log(connector, admin, log, now_ms)
        else:
            done += await _write(connector, admin, log, chosen)
    return done


async def _write(
    connector: Connector, admin: LogAdmin, log: TopicPartition, chosen: Collection[int]
) -> list[Damage]:
    owner = _OWNERS.get(log.topic)
    if owner is None:
        damage = await _still(connector, admin, log, chosen)
        async with closing(connector.writer("repair")) as writer:
            for record in _writes(damage):
                await append(writer, log, record.value, key=record.key)
        return damage
    async with closing(
        connector.transactional_writer(connector.own_id(f"{owner}-{log.partition}"))
    ) as native:
        await native.fence()
        damage = await _still(connector, admin, log, chosen)  # judged behind the fence
        await native.write(_writes(damage))
        return damage


async def _still(
    connector: Connector, admin: LogAdmin, log: TopicPartition, chosen: Collection[int]
) -> list[Damage]:
    damage = await keyed_topics.find_damage(connector, admin, log)
    return [one for one in damage if one.record.offset in chosen and one.repairable]


def _writes(damage: Sequence[Damage]) -> list[NewRecord]:
    """What to write, each key once."""
    return list({it.key: it for one in damage for it in one.remedy.writes}.values())
