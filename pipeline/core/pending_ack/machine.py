"""One owner of a pending-ack log: applies what the log holds, answers what it was asked.

*Source*: protocols.md G, C0, C1.
*Invariants*: C1 an answer leaves only after the request's own entry, or a no-op appended after it
arrived, is effective. It has no deadline: settling is the coordinators' to repeat.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.pending_ack.state import PendingAckState
from schemas.acknowledgements import AckAnswer, AckRequest, Acks, DescribeAcks, PendingAckRecord


@dataclass(frozen=True, slots=True)
class Reply:
    """Effect: send this answer; what it says is durable."""

    request: AckRequest
    answer: AckAnswer


class PendingAckStore:
    """The owner's side of G for one ownership of one partition of pending-ack-log.

    Records are applied from the log start on; nothing is answered before `serve`.
    """

    def __init__(self) -> None:
        self.state = PendingAckState()
        self._serving = False

    def applied(self, records: Sequence[PendingAckRecord], *, own: bool) -> list[Reply]:
        """The records of one effective entry, in order; `own`: appended by this owner."""
        effects: list[Reply] = []
        for record in records:
            answer = self.state.apply(record)
            if answer is not None and own and self._serving:
                assert isinstance(record.body, AckRequest), "only requests are answered"
                effects.append(Reply(record.body, answer))
        return effects

    def serve(self) -> None:
        """Replay is over."""
        self._serving = True

    def asked(self, request: AckRequest) -> Acks:
        """Answer to a question, once a no-op appended after it is read (C1)."""
        assert isinstance(request.body, DescribeAcks)
        return self.state.acks(request.subscription)
