"""What native transactions are open in partitions, who holds them, and a way to end what hangs.

*Source*: KIP-664; the judgement is pipeline.core.native.hanging.

*Invariants*: only a hanging transaction gets a marker from here, and it is judged anew just before:
a live one would commit one half and lose the other.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.native import NativeTransactions
from stilltide.pipeline.core.native.hanging import (
    OpenNativeTransaction,
    judge_open,
    open_producer_ids,
)
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.native.transactions import DescribedTransaction
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class StablePosition(NamedTuple):
    """Where committed readers of a partition stand, and why.

    Attributes:
        data: the partition.
        last_stable_offset: they read no further.
        high_watermark: the end of the log, read after it.
        open: the open transactions, by first offset; the first one holds the readers.
    """

    data: TopicPartition
    last_stable_offset: EndOffset
    high_watermark: EndOffset
    open: tuple[OpenNativeTransaction, ...]


async def open_transactions(
    native: NativeTransactions, partitions: Sequence[TopicPartition]
) -> list[OpenNativeTransaction]:
    """The open transactions of partitions, by partition and first offset.

    Raises:
        FatalError, RetriableError: as of the port.
    """
    before = await native.producers(partitions)
    ids = open_producer_ids(before)
    if not ids:
        return []
    listed = await native.list_transactions(producer_ids=sorted(ids))
    described: dict[str, DescribedTransaction | None] = {
        one.transactional_id: await native.describe_transaction(one.transactional_id)
        for one in listed
    }
    held = [data for data, them in before.items() if any(it.open_from is not None for it in them)]
    return judge_open(before, listed, described, await native.producers(held))


async def stable_positions(
    native: NativeTransactions, admin: LogAdmin, partitions: Sequence[TopicPartition]
) -> list[StablePosition]:
    """Where committed readers stand, in the order of the partitions.

    Raises:
        FatalError: a partition does not exist; others as of the ports.
        RetriableError: as of the ports.
    """
    stable = await admin.end_offsets(partitions, committed=True)
    ends, found = await asyncio.gather(
        admin.end_offsets(partitions), open_transactions(native, partitions)
    )
    for data in partitions:
        if data not in stable or data not in ends:
            raise FatalError(f"{data} does not exist", hint="it was deleted meanwhile")
    return [
        StablePosition(
            data, stable[data], ends[data], tuple(one for one in found if one.data == data)
        )
        for data in partitions
    ]


async def find_hanging(
    native: NativeTransactions, data: TopicPartition, open_from: Offset
) -> OpenNativeTransaction:
    """The hanging transaction that begins at an offset.

    Raises:
        RefusedError: none begins there, or its coordinator will end it.
        FatalError, RetriableError: as of the port.
    """
    found = await open_transactions(native, [data])
    one = next((it for it in found if it.open_from == open_from), None)
    if one is None:
        starts = ", ".join(str(it.open_from) for it in found) or "none"
        raise RefusedError(
            f"no transaction that is open begins at offset {open_from}",
            detail=f"first offsets of open ones: {starts}",
            hint="`stilltide native hanging` shows what hangs, and from where",
            topic=data.topic,
            partition=data.partition,
        )
    if not one.hanging:
        assert one.transaction is not None
        raise RefusedError(
            f"the transaction of {one.transactional_id} is not hanging",
            detail=f"its coordinator says {one.transaction.state}, and will end it within "
            f"{one.transaction.timeout_ms / 1000:g} s of its start; a marker from elsewhere would "
            "abort one part of it and leave the others",
            hint="`stilltide native fence` aborts it as a whole",
            topic=data.topic,
            partition=data.partition,
            offset=open_from,
        )
    return one


async def abort_hanging(
    native: NativeTransactions, data: TopicPartition, open_from: Offset
) -> OpenNativeTransaction:
    """Ends a hanging transaction with an ABORT marker; what it was.

    Raises:
        As `find_hanging`, and `NativeTransactions.write_abort_marker`.
    """
    one = await find_hanging(native, data, open_from)
    await native.write_abort_marker(data, one.producer)
    return one
