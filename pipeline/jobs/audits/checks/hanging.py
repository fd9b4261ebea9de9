"""Hanging transactions: native transactions that are open and that no coordinator will ever end.

*Source*: docs/protocols F; KIP-664; the rule of judgement is in `pipeline.core.native.hanging`.

*Invariants*: an open transaction that its coordinator will still end is only a figure; an open
transaction past its time-out makes the verdict unknown.
"""

from collections.abc import Sequence

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import NativeTransactions
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.drivers.native.open_transactions import open_transactions
from stilltide.pipeline.jobs.audits.report import (
    Check,
    CheckResult,
    Finding,
    FindingKind,
    Findings,
    OpenNative,
)
from stilltide.schemas.values import TopicPartition


async def ask_open(
    native: NativeTransactions, data: Sequence[TopicPartition]
) -> list[OpenNativeTransaction] | FatalError:
    """The open native transactions, or the error with which the brokers refuse the question.

    Raises:
        RetriableError: a broker is away.
    """
    try:
        return await open_transactions(native, data)
    except FatalError as error:
        return error


def check_hanging(
    opened: Sequence[OpenNativeTransaction] | FatalError,
    partitions: int,
    now_ms: int,
    evidence_max: int,
) -> tuple[CheckResult, tuple[OpenNative, ...]]:
    """Judges the open transactions; returns them oldest first.

    Args:
        opened: the result of `ask_open`.
        partitions: number of partitions asked about that hold anything.
        now_ms: time of the question, milliseconds since 1970.
        evidence_max: number of findings of each kind to list.
    """
    findings, shown = Findings(evidence_max), list[OpenNative]()
    if isinstance(opened, FatalError):
        why = str(opened)
        findings.add(Finding(FindingKind.UNASKED, None, None, None, None, None, None, why))
        opened = ()
    for native in opened:
        age_ms = _age_ms(native, now_ms)
        shown.append(
            OpenNative(
                *native.data,
                native.producer.producer_id,
                native.open_from,
                age_ms,
                native.transactional_id,
            )
        )
        who = f"producer {native.producer.producer_id}"
        if native.hanging:
            kind, detail = FindingKind.HANGING, f"{who}: no coordinator will end it"
        elif native.transaction is not None and age_ms > native.transaction.timeout_ms:
            kind = FindingKind.OVERDUE
            limit = f"its time-out is {native.transaction.timeout_ms} ms"
            detail = f"{native.transactional_id}, {who}: open for {age_ms} ms, {limit}"
        else:
            continue
        findings.add(Finding(kind, *native.data, native.open_from, None, None, None, detail))
    shown.sort(key=lambda one: -one.age_ms)
    result = CheckResult.of(
        Check.HANGING, findings, partitions, partitions=partitions, open=len(shown)
    )
    return result, tuple(shown)


def _age_ms(native: OpenNativeTransaction, now_ms: int) -> int:
    """Time since the begin, or since the last write if the begin is unknown; clocks may differ."""
    began_ms = native.transaction.started_at_ms if native.transaction is not None else None
    return max(0, now_ms - (native.producer.last_timestamp_ms if began_ms is None else began_ms))
