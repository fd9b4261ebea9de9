"""A pending-ack store: applies the log's records, answers requests, and writes bases.

*Source*: docs/protocols G1, C0, C1, C8, C10, C16; Kafka's bounds of names, partitions and offsets.
*Invariants*: C1 an answer is sent only after the request's own entry, or a no-op appended after the
request arrived, is effective. Only bases have a deadline, because coordinators repeat the settling.
Every record counts as dead once applied, because a base holds all that is still needed of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from stilltide.pipeline.core.buffered_log.bases import BaseKeeper, BaseLimits, Entry, Recovery, Trim
from stilltide.pipeline.core.pending_ack.state import SUBSCRIPTIONS_MAX, PendingAckState
from stilltide.pipeline.core.pending_ack.subscription import HELD_MAX
from stilltide.schemas.log_frames import Base
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    Acknowledge,
    AckRequest,
    Acks,
    AckState,
    Attach,
    CursorMoved,
    DescribeAcks,
    PendingAckRecord,
)
from stilltide.schemas.pending_ack.codec import decode_state
from stilltide.schemas.service.envelopes import (
    CLIENT_NAME_CHARS_MAX,
    Done,
    Refused,
    Request,
    wrong_client_id,
)
from stilltide.schemas.topics import PENDING_ACK_LOG, is_system_topic, is_topic_name
from stilltide.schemas.values import (
    OFFSET_MAX,
    PARTITION_MAX,
    TOPIC_ID_BYTES,
    EndOffset,
    Offset,
    Ranges,
    SubscriptionId,
    TopicPartition,
)

ANSWERED_ITEMS_MAX = 2 * HELD_MAX
"""Ranges and transactions in the answers to the claims of one entry, and one answer's. Later claims
of the entry take effect without an answer, and come again (C1b)."""


class AckReply(NamedTuple):
    """Effect: send this answer to the client; its content is durable."""

    request: AckRequest
    answer: AckAnswer


@dataclass(frozen=True, slots=True)
class WriteAckBase:
    """Effect: append this state in pieces, in order; report `base_lost` if one is lost (C8)."""

    as_of: EndOffset
    state: AckState


PendingAckEffect = AckReply | WriteAckBase | Trim


class PendingAckStore:
    """The store of one pending-ack-log partition, from one owner's fence to the next owner's (G).

    The owner applies the log's records from the log start on. Before `serve` nothing is answered.

    Args:
        partition: partition of pending-ack-log.
        log_start: offset of the first entry that will be applied, or lower; above 0 the log was
            trimmed, and the state comes from its first base (C8).
        base_limits: when a base is due.

    Attributes:
        served: group partitions in which this owner has applied an acknowledgement of its own.
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
        """As-of offset of the newest base, of this owner or where its replay began (C8)."""
        written = self.bases.written_as_of
        return self._recovery.base_as_of if written is None else written

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due next; None before `serve`, and when no base will be due."""
        return self.bases.next_due_ms(idle=self.state.idle) if self._serving else None

    def applied(
        self, offset: Offset, records: Sequence[PendingAckRecord], *, own: bool, now_ms: int
    ) -> list[PendingAckEffect]:
        """The records of the next effective entry, in order; `own`: appended by this owner (G1).

        Raises:
            DecodeError: the base of a trimmed log cannot be understood.
            LogTrimmedError: no base is among the first records of a trimmed log.
        """
        effects: list[PendingAckEffect] = []
        room = ANSWERED_ITEMS_MAX
        base, entries = self._recovery.entry_read(Entry(offset, records))
        if base is not None:
            self.state = PendingAckState.from_base(decode_state(base))
        for entry in entries:
            self.bases.entry_read(entry.offset, len(entry.records))
            for body, at_ms in entry.records:
                if isinstance(body, Request):
                    self.bases.changed(now_ms)
                    answering = own and self._serving
                    if room <= 0 and isinstance(body.body.ask, Attach):
                        answering = False
                    answer = self.state.apply(body, at_ms, quietly=not answering)
                    if not answering:
                        continue
                    effects.append(AckReply(body, answer))
                    if isinstance(answer, Acks):
                        room -= answer.item_count
                    elif body.body.subscription not in self.served:
                        self._answered(body, answer)
                elif isinstance(body, Base):
                    effects += self.bases.piece_read(body)
        return effects

    def serve(self, epoch: Offset, now_ms: int) -> list[PendingAckEffect]:
        """Replay is over; no step of the former owner is unfinished.

        Raises:
            LogTrimmedError: the log was trimmed, and no base was found in it.
        """
        self._recovery.check_complete()
        self._serving = True
        self.bases.served(epoch, now_ms)
        return []

    def asked(self, request: AckRequest, *, operator: bool) -> Acks | Refused:
        """The answer to a question, once a no-op appended after the question is read back (C1).

        An operator may ask about any group partition, a client about those that it holds (C15).
        """
        subscription, ask = request.body
        assert isinstance(ask, DescribeAcks)
        assert subscription is not None
        if operator:
            return self.state.acks(subscription)
        return self.state.acks_for(subscription, request.client_id)

    def tick(self, now_ms: int) -> list[PendingAckEffect]:
        """Writes a base that is due, and repeats a failed trim that is due."""
        effects: list[PendingAckEffect] = [*self.bases.trims_due(now_ms)]
        as_of = self.bases.due(
            now_ms, idle=self.state.idle, live_count=lambda: self.state.item_count
        )
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
        """Whether the log was trimmed is unknown; untrimmed records only take space."""
        self.bases.trim_failed(offset, now_ms)

    def _answered(self, request: AckRequest, answer: AckAnswer) -> None:
        """Notes a group partition's first acknowledgement."""
        subscription, ask = request.body
        if not isinstance(ask, Acknowledge) or not isinstance(answer, Done):
            return
        assert subscription is not None, "a question is never logged"
        self.served.add(subscription)
        if len(self.served) > SUBSCRIPTIONS_MAX:  # some of them were forgotten
            self.served &= self.state.subscriptions.keys()


def _base_of(record: PendingAckRecord) -> Base | None:
    return record.body if isinstance(record.body, Base) else None


NAME_CHARS_MAX = 1000
"""Longest name of a consumer group, and longest id of a member."""


def wrong_values(request: AckRequest) -> str:
    """Why the values of a client's request cannot be true; "" if they can."""
    subscription, body = request.body
    wrong = "" if subscription is None else _wrong_subscription(subscription)
    if isinstance(body, Attach):
        if len(body.group_member) > NAME_CHARS_MAX or len(body.client_name) > CLIENT_NAME_CHARS_MAX:
            return f"a name of more than {CLIENT_NAME_CHARS_MAX} characters"
        if len(body.topic_id) not in {0, TOPIC_ID_BYTES}:
            return f"a topic's id of {len(body.topic_id)} bytes"
        return wrong or _wrong_cursor(body.cursor, body.acknowledged)
    if isinstance(body, CursorMoved):
        return wrong or _wrong_cursor(body.cursor, body.acknowledged)
    if isinstance(body, Acknowledge):
        return wrong or _wrong_acknowledgement(body)
    return wrong


@lru_cache(maxsize=4096)
def _wrong_subscription(subscription: SubscriptionId) -> str:
    """Cached: few group partitions come again and again."""
    (topic, partition), group = subscription
    if partition > PARTITION_MAX or is_system_topic(topic) or not is_topic_name(topic):
        return f"no application reads {topic[:50]!r}/{partition}"
    if not 1 <= len(group) <= NAME_CHARS_MAX:
        return f"a group's name of {len(group)} characters"
    return ""


def _wrong_cursor(cursor: int, acknowledged: Ranges) -> str:
    if len(acknowledged) > HELD_MAX:
        return f"{len(acknowledged)} ranges of offsets; the most is {HELD_MAX}"
    return _wrong_offsets((cursor, *(end for _, end in acknowledged[-1:])))


def _wrong_acknowledgement(body: Acknowledge) -> str:
    if wrong_client_id(body.txn_client_id):
        return "an acknowledgement that does not name the client of the transaction"
    if len(body.offsets) > HELD_MAX:
        return f"{len(body.offsets)} offsets; the most is {HELD_MAX}"
    beyond = max(*body.txn, body.cumulative_offset or 0)
    return _wrong_offsets((beyond, max(body.offsets, default=0)))


def _wrong_offsets(offsets: Iterable[int]) -> str:
    beyond = [offset for offset in offsets if offset > OFFSET_MAX]
    return f"offset {beyond[0]} is beyond 2^63 - 1" if beyond else ""
