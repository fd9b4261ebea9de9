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
from stilltide.pipeline.jobs.audits.report import Check, CheckResult, Findings, OpenNative
from stilltide.pipeline.jobs.audits.verdicts import Finding, FindingKind
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
    found: Sequence[OpenNativeTransaction] | FatalError,
    partitions: int,
    now_ms: int,
    evidence_max: int,
) -> tuple[CheckResult, tuple[OpenNative, ...]]:
    """Judges the open transactions; returns them oldest first.

    Args:
        found: the result of `ask_open`.
        partitions: number of partitions asked about that hold anything.
        now_ms: time of the question, milliseconds since 1970.
        evidence_max: number of findings of each kind to list.
    """
    findings, shown = Findings(evidence_max), list[OpenNative]()
    if isinstance(found, FatalError):
        why = str(found)
        findings.add(Finding(FindingKind.UNASKED, None, None, None, None, None, None, why))
        found = ()
    for one in found:
        age_ms = _age_ms(one, now_ms)
        shown.append(
            OpenNative(
                *one.data, one.producer.producer_id, one.open_from, age_ms, one.transactional_id
            )
        )
        who = f"producer {one.producer.producer_id}"
        if one.hanging:
            kind, detail = FindingKind.HANGING, f"{who}: no coordinator will end it"
        elif one.transaction is not None and age_ms > one.transaction.timeout_ms:
            kind = FindingKind.OVERDUE
            limit = f"its time-out is {one.transaction.timeout_ms} ms"
            detail = f"{one.transactional_id}, {who}: open for {age_ms} ms, {limit}"
        else:
            continue
        findings.add(Finding(kind, *one.data, one.open_from, None, None, None, detail))
    shown.sort(key=lambda one: -one.age_ms)
    result = CheckResult.of(
        Check.HANGING, findings, partitions, partitions=partitions, open=len(shown)
    )
    return result, tuple(shown)


def _age_ms(one: OpenNativeTransaction, now_ms: int) -> int:
    """Time since the begin, or since the last write if the begin is unknown; clocks may differ."""
    began_ms = one.transaction.started_at_ms if one.transaction is not None else None
    return max(0, now_ms - (one.producer.last_timestamp_ms if began_ms is None else began_ms))
