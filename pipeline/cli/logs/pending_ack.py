"""`stilltide pending-ack`: the stores of acknowledgements in transactions, and their log.

*Source*: PIP-160, API changes; Pulsar's stats and internal stats of a pending-ack store.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import click

from stilltide.pipeline.cli.common.asking import (
    STORES,
    Target,
    answered,
    ask,
    cluster_options,
    exit_code,
    exit_codes,
    target,
)
from stilltide.pipeline.cli.common.output import (
    Row,
    output_option,
    print_columns,
    print_rows,
    say,
)
from stilltide.pipeline.cli.logs.batching import (
    Batched,
    BatchingState,
    States,
    batching_group,
    bounds_columns,
    downgrade_command,
    writing_columns,
)
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.pipeline.drivers.service.ask.requests import LogBounds
from stilltide.schemas.pending_ack.acknowledgements import StoreStats
from stilltide.schemas.settings import PENDING_ACK_BATCHING_ENABLED
from stilltide.schemas.topics import PENDING_ACK_LOG
from stilltide.schemas.values import TopicPartition


def _states(asked: Target) -> States:
    answers = ask(PendingAckStores, asked, PendingAckStores.stats)
    say_omitted(answers)
    return {number: one and subscription_states(one) for number, one in answers.items()}


def subscription_states(stats: StoreStats) -> list[BatchingState]:
    """The subscriptions that a store has served, and whether their records share entries."""
    served = sorted(it.subscription for it in stats.subscriptions if it.has_served)
    return [
        BatchingState(
            str(each),
            f"{each.data.topic}-{each.group}-{each.data.partition}",
            stats.log.batching_enabled,
        )
        for each in served
    ]


_LOG = Batched(
    "pending-ack",
    PENDING_ACK_BATCHING_ENABLED,
    STORES,
    "subscriptions",
    ("txnPendingAckBatchLogEnabled", "subscriptionArray"),
    _states,
)


@click.group("pending-ack")
def pending_ack() -> None:
    """See acknowledgements in transactions; switch and check the batching of their log."""


pending_ack.add_command(batching_group(_LOG))
pending_ack.add_command(downgrade_command(_LOG, PENDING_ACK_LOG))


@pending_ack.command(
    epilog=exit_codes(STORES)
    + """
\b
Examples:
  stilltide pending-ack stats
  stilltide pending-ack stats --topic orders --group billing -o json
  stilltide pending-ack stats -o json | jq '.[] | select(.locked_offsets > 1000)'
"""
)
@cluster_options
@click.option("--topic", default="", help="Only subscriptions of this topic.")
@click.option("--group", default="", help="Only subscriptions of this consumer group.")
@output_option
def stats(topic: str, group: str, output: str, **cluster: Any) -> int:
    """Show every subscription's acknowledgements, and those pending in transactions.

    An offset that is locked by a transaction can be acknowledged in no other transaction until the
    first one ends. `log` is the partition of the pending-ack log that holds the subscription.
    """
    answers = ask(
        PendingAckStores, target(**cluster), lambda stores: stores.stats(topic=topic, group=group)
    )
    say_omitted(answers)
    code = exit_code(answers)
    empty = "" if code else "no subscription has acknowledged single messages"
    print_rows(stats_rows(answered(answers, STORES)), output, empty=empty)
    return code


@pending_ack.command(
    "internal-stats",
    epilog=exit_codes(STORES)
    + """
\b
Examples:
  stilltide pending-ack internal-stats
  stilltide pending-ack internal-stats -o json | jq '.[].records_per_entry'
""",
)
@cluster_options
@output_option
def internal_stats(output: str, **cluster: Any) -> int:
    """Show every store's log, base and batching.

    Written entries and records are those of the present owner. A base is the store's whole state as
    of an offset of the log, so the log can be trimmed up to that offset.
    """

    async def work(stores: PendingAckStores) -> tuple[dict[int, StoreStats | None], LogBounds]:
        return await stores.stats(), await stores.log_bounds()

    answers, bounds = ask(PendingAckStores, target(**cluster), work)
    print_columns(internal_rows(answered(answers, STORES), bounds), output)
    return exit_code(answers)


def say_omitted(answers: Mapping[int, StoreStats | None]) -> None:
    """Reports subscriptions that did not fit into an answer, on stderr."""
    for number, stats in answers.items():
        if stats is not None and stats.subscriptions_omitted:
            say(
                f"{stats.subscriptions_omitted} more subscriptions of store {number}"
                " are not shown\n"
                "  hint: select some of them: stilltide pending-ack stats --topic T --group G"
            )


def stats_rows(by_store: Mapping[int, StoreStats]) -> list[Row]:
    """A row for each subscription, by topic, partition and group."""
    rows: list[Row] = [
        {
            **subscription.subscription.data._asdict(),
            "group": subscription.subscription.group,
            "attached": subscription.attached,
            "cursor": subscription.cursor,
            "committed": subscription.committed,
            "acknowledged_ranges": subscription.acknowledged_ranges,
            "pending_transactions": subscription.pending_transactions,
            "pending_individual": subscription.pending_individual,
            "pending_cumulative_offset": subscription.pending_cumulative_offset,
            "locked_offsets": subscription.locked_offsets,
            "log": number,
        }
        for number, stats in by_store.items()
        for subscription in stats.subscriptions
    ]
    return sorted(rows, key=itemgetter("topic", "partition", "group"))


def internal_rows(by_store: Mapping[int, StoreStats], bounds: LogBounds) -> list[Row]:
    """A row for each store: its log, its state, and its owner's batching."""
    return [
        {
            "store": number,
            "log": str(TopicPartition(PENDING_ACK_LOG, number)),
            "epoch": stats.log.epoch,
            **bounds_columns(bounds[number]),
            "log_records": stats.log_records,
            "base_as_of_offset": stats.base_as_of,
            "subscriptions": stats.subscription_count,
            "transactions": stats.transaction_count,
            "pending_individual": stats.pending_individual,
            "pending_cumulative": stats.pending_cumulative,
            **writing_columns(stats.log),
            "buffered_records": stats.buffered_records,
            "buffered_bytes": stats.buffered_bytes,
            "recovery_s": stats.log.recovery_ms / 1000,
        }
        for number, stats in by_store.items()
    ]
