"""The figures of a pending-ack store, for operators and for metrics.

*Source*: PIP-160, API changes; Pulsar's stats and internal stats of a pending-ack store.
"""

from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.pending_ack.machine import PendingAckStore
from stilltide.pipeline.core.pending_ack.subscription import SubscriptionAcks
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.service.ownership import Ownership, log_figures
from stilltide.schemas.pending_ack.acknowledgements import (
    DescribeStore,
    StoreStats,
    SubscriptionStats,
)
from stilltide.schemas.values import SubscriptionId

SUBSCRIPTIONS_SHOWN_MAX = 1000
"""Subscriptions that an answer describes; `subscriptions_omitted` counts the others."""


def store_stats(
    machine: PendingAckStore, owned_log: OwnedLog, limits: BatchLimits, ownership: Ownership
) -> StoreStats:
    """The figures of a serving store.

    Costs a walk over subscriptions and pending acknowledgements: 3 ms at 10 000 of both.
    """
    held = machine.state.subscriptions.values()
    liveness = machine.bases.liveness
    buffered_records, buffered_bytes = owned_log.buffered
    return StoreStats(
        log=log_figures(owned_log, limits, ownership),
        subscription_count=len(held),
        transaction_count=len({txn for one in held for txn in one.pending}),
        pending_individual=sum(one.individual_count for one in held),
        pending_cumulative=sum(one.cumulative_offset is not None for one in held),
        buffered_records=buffered_records,
        buffered_bytes=buffered_bytes,
        base_as_of=machine.base_as_of,
        log_records=liveness.live_count + liveness.dead_count,
        subscriptions=(),
        subscriptions_omitted=0,
    )


def with_subscriptions(
    figures: StoreStats, machine: PendingAckStore, asked: DescribeStore
) -> StoreStats:
    """The figures, and those of the subscriptions that `asked` names.

    Costs a walk over all subscriptions: 10 ms at 10 000, with the answer's bytes.
    """
    matching = [
        (subscription, held)
        for subscription, held in machine.state.subscriptions.items()
        if asked.topic in ("", subscription.data.topic) and asked.group in ("", subscription.group)
    ]
    matching.sort(key=lambda it: len(it[1].pending), reverse=True)
    shown = matching[:SUBSCRIPTIONS_SHOWN_MAX]
    return figures._replace(
        subscriptions=tuple(
            subscription_stats(subscription, held, has_served=subscription in machine.served)
            for subscription, held in shown
        ),
        subscriptions_omitted=len(matching) - len(shown),
    )


def subscription_stats(
    subscription: SubscriptionId, held: SubscriptionAcks, *, has_served: bool
) -> SubscriptionStats:
    """The figures of one subscription."""
    return SubscriptionStats(
        subscription=subscription,
        attached=bool(held.member),
        cursor=held.cursor,
        committed=held.committed,
        acknowledged_ranges=held.acknowledged.range_count,
        pending_transactions=len(held.pending),
        pending_individual=held.individual_count,
        pending_cumulative_offset=held.cumulative_offset,
        locked_offsets=held.locked_count,
        has_served=has_served,
        client_key=held.client_key,
        client_name=held.client_name,
    )
