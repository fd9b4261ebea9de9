"""Finds the open native transactions of partitions and their producers; aborts a hanging one.

*Source*: KIP-664; the judgement is pipeline.core.native.hanging.

*Invariants*: only a hanging transaction gets an ABORT marker, and it is judged again right before:
a live transaction would lose a part of its records and commit the rest.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.pipeline.core.native.hanging import (
    OpenNativeTransaction,
    judge_open,
    open_producer_ids,
)
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.native.transactions import DescribedTransaction
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class StablePosition(NamedTuple):
    """The offset at which consumers at read_committed stop in a partition, and the cause.

    Attributes:
        data: the partition.
        last_stable_offset: end offset up to which the consumers read.
        high_watermark: end of the log, read after `last_stable_offset`.
        open: open transactions, by first offset; the first one holds the consumers back.
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
        FatalError, RetriableError: see the port.
    """
    before = await native.producers(partitions)
    ids = open_producer_ids(before)
    if not ids:
        return []
    listed = await native.list_transactions(producer_ids=sorted(ids))
    described: dict[str, DescribedTransaction | None] = {
        transaction.transactional_id: await native.describe_transaction(
            transaction.transactional_id
        )
        for transaction in listed
    }
    with_open = [
        data for data, them in before.items() if any(it.open_from is not None for it in them)
    ]
    return judge_open(before, listed, described, await native.producers(with_open))


async def stable_positions(
    native: NativeTransactions, admin: LogAdmin, partitions: Sequence[TopicPartition]
) -> list[StablePosition]:
    """The stable position of each partition, in the order of the partitions.

    Raises:
        FatalError: a partition does not exist; for other causes see the ports.
        RetriableError: see the ports.
    """
    stable = await admin.end_offsets(partitions, committed=True)
    ends, transactions = await asyncio.gather(
        admin.end_offsets(partitions), open_transactions(native, partitions)
    )
    for data in partitions:
        if data not in stable or data not in ends:
            raise FatalError(f"{data} does not exist", hint="it was deleted meanwhile")
    return [
        StablePosition(
            data, stable[data], ends[data], tuple(one for one in transactions if one.data == data)
        )
        for data in partitions
    ]


async def find_hanging(
    native: NativeTransactions, data: TopicPartition, open_from: Offset
) -> OpenNativeTransaction:
    """The hanging transaction that begins at an offset (F Hanging).

    Raises:
        RefusedError: no open transaction begins there, or its coordinator will end it.
        FatalError, RetriableError: see the port.
    """
    opened = await open_transactions(native, [data])
    candidate = next((it for it in opened if it.open_from == open_from), None)
    if candidate is None:
        starts = ", ".join(str(it.open_from) for it in opened) or "none"
        raise RefusedError(
            f"no open transaction begins at offset {open_from}",
            detail=f"first offsets of open transactions: {starts}",
            hint="`stilltide native hanging` lists hanging transactions and their first offsets",
            data=data,
        )
    if not candidate.hanging:
        assert candidate.transaction is not None
        raise RefusedError(
            f"the transaction of {candidate.transactional_id} is not hanging",
            detail=f"its coordinator reports {candidate.transaction.state}, and will end it within"
            f" {candidate.transaction.timeout_ms / 1000:g} s of its start; a marker from elsewhere"
            " would abort one part of the transaction and leave the others",
            hint="wait: its link or index ends it when it runs, or its coordinator does"
            if candidate.is_own
            else "`stilltide native fence` aborts it as a whole",
            data=data,
            offset=open_from,
        )
    return candidate


async def abort_hanging(
    native: NativeTransactions, data: TopicPartition, open_from: Offset
) -> OpenNativeTransaction:
    """Ends a hanging transaction with an ABORT marker; returns the transaction.

    Raises:
        The errors of `find_hanging` and of `NativeTransactions.write_marker`.
    """
    transaction = await find_hanging(native, data, open_from)
    await native.write_marker(data, transaction.producer, committed=False)
    return transaction
