"""Codec of a coordinator's figures, which are part of its answers.

*Source*: docs/protocols B1, C1, C7; PIP-160: batch index of live records.
"""

from typing import Any

from stilltide.schemas.coordinator.transactions import (
    CompactedTopic,
    CoordinatorStats,
    LiveEntry,
    LogLiveness,
    ReportedEnd,
)
from stilltide.schemas.log_frame_codec import figure_fields, figures_of
from stilltide.schemas.log_frames import LogFigures
from stilltide.schemas.v1 import requests_pb2 as pb
from stilltide.schemas.values import Offset

_OTHERS = ("log", "liveness", "ends", "compacted")
_OWN = [name for name in CoordinatorStats._fields if name not in _OTHERS]


def stats_message(stats: CoordinatorStats) -> pb.CoordinatorStats:
    """The message that holds the figures."""
    fields = stats._asdict()
    log: LogFigures = fields.pop("log")
    liveness: LogLiveness | None = fields.pop("liveness")
    ends: tuple[ReportedEnd, ...] = fields.pop("ends")
    compacted: tuple[CompactedTopic, ...] = fields.pop("compacted")
    message = pb.CoordinatorStats(
        **fields,
        **figure_fields(log),
        ends=[pb.ReportedEnd(**one._asdict()) for one in ends],
        compacted=[pb.CompactedTopic(**one._asdict()) for one in compacted],
    )
    if liveness is not None:
        message.liveness.CopyFrom(_liveness_message(liveness))
    return message


def stats_of(message: pb.CoordinatorStats) -> CoordinatorStats:
    """The figures a message holds."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in _OWN}
    liveness = _liveness_of(message.liveness) if message.HasField("liveness") else None
    ends = tuple(
        ReportedEnd(one.kind, one.name, one.ended_ms, one.why, one.hint) for one in message.ends
    )
    compacted = tuple(CompactedTopic(one.topic, one.seen_ms) for one in message.compacted)
    return CoordinatorStats(
        **fields, log=figures_of(message), liveness=liveness, ends=ends, compacted=compacted
    )


def _liveness_message(liveness: LogLiveness) -> pb.LogLiveness:
    return pb.LogLiveness(
        first_live_offset=liveness.first_live_offset,
        live_records=liveness.live_records,
        dead_records=liveness.dead_records,
        entries=[
            pb.LiveEntry(offset=offset, live=live.to_bytes((live.bit_length() + 7) // 8, "little"))
            for offset, live in liveness.entries
        ],
    )


def _liveness_of(message: pb.LogLiveness) -> LogLiveness:
    first = Offset(message.first_live_offset) if message.HasField("first_live_offset") else None
    entries = tuple(
        LiveEntry(Offset(one.offset), int.from_bytes(one.live, "little")) for one in message.entries
    )
    return LogLiveness(first, message.live_records, message.dead_records, entries)
