"""Reads native transactions: open ones, hanging ones, transactional ids and producers.

*Source*: KIP-664.
"""

from collections import Counter

from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.pipeline.core.status.asks import Native, Producers, ProducersAsk
from stilltide.pipeline.drivers.native.open_transactions import open_transactions
from stilltide.pipeline.drivers.status.holds import PARTITIONS_MAX, held_partitions
from stilltide.pipeline.drivers.status.looks.topics import partition_count, partitions_from

REST_S = 2.0

IDS_MAX = 200
"""Transactional ids that an answer names; the others are counted."""

PRODUCERS_MAX = 200
"""Producers that an answer shows; the others are counted."""


async def native_transactions(native: NativeTransactions, admin: LogAdmin) -> Native:
    """Open transactions, and the transactional ids that the coordinators know.

    Raises:
        ConnectorError: the cluster is away, or forbids the question.
    """
    held = list(await held_partitions(admin))
    found = await open_transactions(native, held[:PARTITIONS_MAX]) if held else []
    ids = await native.list_transactions()
    return Native(
        tuple(found), len(held), tuple(ids[:IDS_MAX]), Counter(str(one.state) for one in ids)
    )


async def producers_of(native: NativeTransactions, admin: LogAdmin, ask: ProducersAsk) -> Producers:
    """The producers of a topic's partitions, from a number on.

    Raises:
        FatalError: the topic does not exist.
        ConnectorError: the cluster is away, or forbids the question.
    """
    count = await partition_count(admin, ask.topic)
    wanted = partitions_from(ask.topic, ask.first, count)
    found = await native.producers(wanted) if wanted else {}
    all_found = [(data, one) for data, them in sorted(found.items()) for one in them]
    return Producers(count, tuple(all_found[:PRODUCERS_MAX]), len(all_found))
