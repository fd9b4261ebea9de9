"""Losses of the rules about acknowledgements: letter G."""

from typing import Any
from unittest.mock import patch

from stilltide.pipeline.client.dead_letters.sender import DeadLetterSender
from stilltide.pipeline.core.pending_ack.cursor import Ahead, Cursor
from stilltide.pipeline.core.pending_ack.redeliveries import Redeliver, Redeliveries
from stilltide.pipeline.core.pending_ack.state import CoordinatorView, PendingAckState
from stilltide.pipeline.core.pending_ack.subscription import SubscriptionAcks
from stilltide.pipeline.core.pending_ack.tracker import Tracker
from stilltide.pipeline.drivers.pending_ack import acknowledgements
from stilltide.schemas.pending_ack.acknowledgements import Acknowledge
from stilltide.schemas.service.envelopes import client_key
from tests.simulation.losses.ablation import Ablation, none


def _takes_every_member(original: Any) -> Any:
    def apply(self: Any, request: Any, at_ms: int, **rest: Any) -> Any:
        held = self.subscriptions.get(request.subscription)
        if held is None or not isinstance(request.body, Acknowledge):
            return original(self, request, at_ms, **rest)
        attached, held.client_key = held.client_key, client_key(request.client_id)
        asked = request._replace(body=request.body._replace(member=held.member))
        answer = original(self, asked, at_ms, **rest)
        held.client_key = attached
        return answer

    return apply


def _takes_everything(original: Any) -> Any:
    taking = _takes_every_member(original)

    def apply(self: Any, request: Any, at_ms: int, **rest: Any) -> Any:
        with patch.object(SubscriptionAcks, "_individual_conflict", lambda *_: None):
            return taking(self, request, at_ms, **rest)

    return apply


def _abort_acknowledges(original: Any) -> Any:
    def settle(self: Any, txn: Any, *, committed: bool, **rest: Any) -> None:
        del committed
        original(self, txn, committed=True, **rest)

    return settle


def _commit_does_not_acknowledge(original: Any) -> Any:
    def settle(self: Any, txn: Any, *, committed: bool, **rest: Any) -> None:
        del committed
        original(self, txn, committed=False, **rest)

    return settle


def _cursor_is_the_position(original: Any) -> Any:
    def cursor(self: Any, position: int) -> Cursor:
        made = original(self, position)
        return made._replace(offset=max(position, made.offset), acknowledged=())

    return cursor


def _nothing_is_held_back(original: Any) -> Any:
    def note(self: Any, acks: Any, position: int) -> None:
        original(self, acks._replace(pending=()), position)

    return note


def _two_steps(_original: Any) -> Any:
    async def move(self: Any, letter: Any) -> None:
        record = letter.payload
        async with self._client.transaction() as txn:
            await txn.send(self._names.of(record.topic), record.value, key=record.key)
        async with self._client.transaction() as txn:
            await txn.acknowledge(self._subscription, record)

    return move


def _knows_no_topic(_original: Any) -> Any:
    return lambda self, _topic_id: self


def _never_dead(_original: Any) -> Any:
    return lambda _self, _offset, payload: Redeliver(payload, 1)


ABLATIONS = (
    Ablation("G", "two transactions may acknowledge one message", SubscriptionAcks,
             "_individual_conflict", none,
             "members that were replaced are refused (Gm); both are off in Gmc",
             tests="tests/unit/core/pending_ack"),
    Ablation("G2", "a dead letter and the acknowledgement of its message are two transactions",
             DeadLetterSender, "_move", _two_steps),
    Ablation("G2n", "a message that failed too often is delivered again", Redeliveries,
             "_redelivery", _never_dead),
    Ablation("G3", "what is acknowledged in a former topic counts in the one created again",
             SubscriptionAcks, "of_topic", _knows_no_topic,
             "a claim forgets what lies beyond the end of the log (G4), which is short by then",
             tests="tests/unit/core/pending_ack"),
    Ablation("Ga", "an aborted transaction acknowledges", SubscriptionAcks, "settle",
             _abort_acknowledges),
    Ablation("Gc", "a committed transaction does not acknowledge", SubscriptionAcks, "settle",
             _commit_does_not_acknowledge),
    Ablation("Gd", "acknowledgements above the cursor are not in the group's commit",
             acknowledgements, "encode", lambda _: lambda _cursor: ""),
    Ablation("Ge", "a settled transaction may still acknowledge", CoordinatorView, "has_ended",
             lambda _: lambda *_: False),
    Ablation("Gh", "what is pending in the transaction of another member is delivered", Ahead,
             "note", _nothing_is_held_back),
    Ablation("Gk", "the cursor passes messages that are not acknowledged", Tracker, "cursor",
             _cursor_is_the_position),
    Ablation("Gm", "a member that was replaced may still acknowledge", PendingAckState, "apply",
             _takes_every_member,
             "the store refuses what is pending or acknowledged (G); both are off in Gmc",
             tests="tests/unit/core/pending_ack"),
    Ablation("Gmc", "G and Gm: any member may acknowledge what another transaction acknowledges",
             PendingAckState, "apply", _takes_everything,
             "a member that was replaced learns so, and aborts, before it can commit",
             tests="tests/unit/core/pending_ack"),
)  # fmt: skip
