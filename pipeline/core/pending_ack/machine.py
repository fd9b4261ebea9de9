"""One owner of a pending-ack log: applies what it holds, answers what was asked, writes bases.

*Source*: docs/protocols G, C0, C1, C8.
*Invariants*: C1 an answer leaves only after the request's own entry, or a no-op appended after it
arrived, is effective. Settling is the coordinators' to repeat: only bases have a deadline. No
record is live beyond its entry, because a base holds whatever is still needed of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.pipeline.core.buffered_log.bases import BaseKeeper, BaseLimits, Entry, Recovery, Trim
from stilltide.pipeline.core.pending_ack.state import SUBSCRIPTIONS_MAX, PendingAckState
from stilltide.schemas.coordinator.transactions import Done
from stilltide.schemas.log_frames import Base
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    Acknowledge,
    AckRequest,
    Acks,
    AckState,
    DescribeAcks,
    PendingAckRecord,
)
from stilltide.schemas.pending_ack.log_base import decode_state
from stilltide.schemas.topics import PENDING_ACK_LOG
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition


class AckReply(NamedTuple):
    """Effect: send this answer; what it says is durable."""

    request: AckRequest
    answer: AckAnswer


@dataclass(frozen=True, slots=True)
class WriteAckBase:
    """Effect: append this state in pieces, in order; report `base_lost` if one is lost (C8)."""

    as_of: EndOffset
    state: AckState


PendingAckEffect = AckReply | WriteAckBase | Trim


class PendingAckStore:
    """The owner's side of G for one ownership of one partition of pending-ack-log.

    Records are applied from the log start on; nothing is answered before `serve`.

    Args:
        partition: of pending-ack-log.
        log_start: offset of the first entry that will be applied, or lower; above 0 the log was
            trimmed, and the state comes from its first base (C8).
        base_limits: when a base is due.

    Attributes:
        served: subscriptions in which this owner has applied an acknowledgement that it appended.
    """

    def __init__(
        self,
        partition: int = 0,
        log_start: Offset = Offset(0),  # noqa: B008 - an int with a type's name
        *,
        base_limits: BaseLimits | None = None,
    ) -> None:
        self.state = PendingAckState()
        self.bases = BaseKeeper(log_start, base_limits or BaseLimits())
        log = TopicPartition(PENDING_ACK_LOG, partition)
        self._recovery = Recovery(log, log_start, _base_of)
        self._serving = False
        self.served: set[SubscriptionId] = set()

    @property
    def base_as_of(self) -> EndOffset | None:
        """Of the newest base: written by this owner, or the one its replay began from (C8)."""
        written = self.bases.written_as_of
        return self._recovery.base_as_of if written is None else written

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due next; None before `serve`, and with no base to write."""
        return self.bases.next_due_ms(idle=self.state.idle) if self._serving else None

    def applied(
        self, offset: Offset, records: Sequence[PendingAckRecord], *, own: bool, now_ms: int
    ) -> list[PendingAckEffect]:
        """The records of the next effective entry, in order; `own`: appended by this owner.

        Raises:
            DecodeError: the base of a trimmed log cannot be understood.
            LogTrimmedError: a trimmed log goes on and on without a base.
        """
        effects: list[PendingAckEffect] = []
        base, entries = self._recovery.entry_read(Entry(offset, records))
        if base is not None:
            self.state = PendingAckState.from_base(decode_state(base))
        for entry in entries:
            self.bases.entry_read(entry.offset, len(entry.records))
            for body, at_ms in entry.records:
                if isinstance(body, AckRequest):
                    self.bases.changed(now_ms)
                    answer = self.state.apply(body, at_ms)
                    if own and self._serving:
                        effects.append(AckReply(body, answer))
                        if body.subscription not in self.served:
                            self._answered(body, answer)
                elif isinstance(body, Base):
                    effects += self.bases.piece_read(body)
        return effects

    def serve(self, epoch: Offset, now_ms: int) -> list[PendingAckEffect]:
        """Replay is over; nothing was left half done.

        Raises:
            LogTrimmedError: the log was trimmed, and no base was found in it.
        """
        self._recovery.check_complete()
        self._serving = True
        self.bases.served(epoch, now_ms)
        return []

    def asked(self, request: AckRequest) -> Acks:
        """Answer to a question, once a no-op appended after it is read (C1)."""
        assert isinstance(request.body, DescribeAcks)
        assert request.subscription is not None
        return self.state.acks(request.subscription)

    def tick(self, now_ms: int) -> list[PendingAckEffect]:
        """A base that is due, a trim whose time has come again."""
        effects: list[PendingAckEffect] = [*self.bases.trims_due(now_ms)]
        as_of = self.bases.due(now_ms, idle=self.state.idle, held=lambda: self.state.item_count)
        if as_of is not None:
            effects.append(WriteAckBase(as_of, self.state.base()))
        return effects

    def base_lost(self, as_of: EndOffset, now_ms: int) -> None:
        """A piece of a base will never be effective; another base follows."""
        self.bases.lost(as_of, now_ms)

    def trimmed(self, offset: Offset) -> None:
        """The log begins at `offset` now."""
        self.bases.trimmed(offset)

    def trim_failed(self, offset: Offset, now_ms: int) -> None:
        """Whether the log was trimmed is unknown; nobody but the disk minds."""
        self.bases.trim_failed(offset, now_ms)

    def _answered(self, request: AckRequest, answer: AckAnswer) -> None:
        """Notes the first acknowledgement in a subscription."""
        if not isinstance(request.body, Acknowledge) or not isinstance(answer, Done):
            return
        assert request.subscription is not None, "a question is never logged"
        self.served.add(request.subscription)
        if len(self.served) > SUBSCRIPTIONS_MAX:  # some of them were forgotten
            self.served &= self.state.subscriptions.keys()


def _base_of(record: PendingAckRecord) -> Base | None:
    return record.body if isinstance(record.body, Base) else None
