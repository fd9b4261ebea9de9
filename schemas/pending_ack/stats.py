"""Codec of a pending-ack store's figures, which are part of its answers.

*Source*: docs/protocols G, B1, C8; PIP-160: figures of pending-ack stores for operators.
"""

from typing import Any

from stilltide.schemas.coordinator.requests import subscription_of, subscription_pb
from stilltide.schemas.log_frame_codec import figure_fields, figures_of
from stilltide.schemas.log_frames import LogFigures
from stilltide.schemas.pending_ack.acknowledgements import StoreStats, SubscriptionStats
from stilltide.schemas.v1 import pending_ack_pb2 as pb

_OWN = [name for name in StoreStats._fields if name != "log"]


def stats_message(stats: StoreStats) -> pb.StoreStats:
    """The message that holds the figures."""
    fields = stats._asdict()
    log: LogFigures = fields.pop("log")
    fields["subscriptions"] = map(_subscription_message, stats.subscriptions)
    return pb.StoreStats(**fields, **figure_fields(log))


def stats_of(message: pb.StoreStats) -> StoreStats:
    """The figures a message holds."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in _OWN}
    fields["log"] = figures_of(message)
    fields["subscriptions"] = tuple(map(_subscription_of, message.subscriptions))
    if not message.HasField("base_as_of"):
        fields["base_as_of"] = None
    return StoreStats(**fields)


def _subscription_message(stats: SubscriptionStats) -> pb.SubscriptionStats:
    fields = stats._asdict()
    fields["subscription"] = subscription_pb(stats.subscription)
    return pb.SubscriptionStats(**fields)


def _subscription_of(message: pb.SubscriptionStats) -> SubscriptionStats:
    fields: dict[str, Any] = {name: getattr(message, name) for name in SubscriptionStats._fields}
    fields["subscription"] = subscription_of(message.subscription)
    if not message.HasField("pending_cumulative_offset"):
        fields["pending_cumulative_offset"] = None
    return SubscriptionStats(**fields)
