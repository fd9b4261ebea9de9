"""Takes the requests that arrive at a coordinator: each is refused, answered, or goes to the log.

*Source*: docs/protocols C10, C15, C16, C18.
*Invariants*: what operators ask for is taken from their topic alone, and of clients everything
else; no request is appended that its client has no room for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from stilltide.pipeline.core.coordinator.admission import Admission
from stilltide.pipeline.core.coordinator.machine import Coordinator
from stilltide.pipeline.core.coordinator.request_values import wrong_values
from stilltide.pipeline.drivers.coordinator.end_offsets import KnownEnds
from stilltide.pipeline.drivers.coordinator.known_topics import KnownTopics, Missing
from stilltide.schemas import topics
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Answer,
    CoordinatorStats,
    Describe,
    DescribeCoordinator,
    End,
    Greeting,
    Hello,
    ListTransactions,
    Open,
    RefusalCode,
    Refused,
    Release,
    Request,
    RequestBody,
    Unreadable,
    WriteBarrier,
)


@dataclass(frozen=True, slots=True)
class RequestIntakeCalls:
    """Calls of the coordinator's owner.

    Attributes:
        serving: whether the owner owns its log.
        log: appends a request's bytes to the log.
        answer: answers a request after a no-op (C1); calls its third argument, if any, when the
            no-op is lost.
        greet: says where the worker takes direct lines, to a client's id and nonce (J2).
        barrier: writes a barrier (E1).
        stats: the figures of the coordinator.
    """

    serving: Callable[[], bool]
    log: Callable[[bytes, Request], None]
    answer: Callable[..., None]
    greet: Callable[[bytes, bytes], Greeting]
    barrier: Callable[[Request, WriteBarrier], None]
    stats: Callable[[], CoordinatorStats]


class RequestIntake:
    """The requests that arrive at a coordinator, from one owner's fence to the next owner's.

    Args:
        machine: the coordinator.
        admission: what clients have room for.
        known_topics: looks up the topics of registrations.
        known_ends: proves the end offsets of commits.
        calls: calls of the owner.
    """

    def __init__(
        self,
        machine: Coordinator,
        admission: Admission,
        known_topics: KnownTopics,
        known_ends: KnownEnds,
        calls: RequestIntakeCalls,
    ) -> None:
        self._machine = machine
        self._admission = admission
        self._known_topics = known_topics
        self._known_ends = known_ends
        self._calls = calls
        self._over = False

    def take(self, requests: Sequence[tuple[bytes, Request]], *, operator: bool) -> None:
        """Takes requests and their bytes; `operator`: from the topic of operators (C15)."""
        take = self._operator_asked if operator else self._client_asked
        for data, request in requests:
            body = request.body
            if isinstance(body, Unreadable):
                self._refuse(request, body.refusal)
            else:
                take(data, request, body)

    def read_back(self, request: Request) -> None:
        """A request of this owner was read back, or will never be."""
        self._admission.ended(request)

    def close(self) -> None:
        """Another ownership has begun: topics that are still looked up lead to nothing."""
        self._over = True

    def _client_asked(self, data: bytes, request: Request, body: RequestBody) -> None:
        """Takes a request from a topic that applications may write."""
        match body:
            case Abort() | ListTransactions() | DescribeCoordinator() | WriteBarrier():
                reason = f"{type(body).__name__} is taken from {topics.OPERATOR_REQUESTS} alone"
                self._refuse(request, Refused(reason, RefusalCode.OPERATORS_ONLY))
            case Describe():
                self._described(request)
            case Hello(nonce):
                greet = partial(self._calls.greet, request.client_id, nonce)
                self._calls.answer(request, greet)
            case Open() | AddPartitions() | AddSubscriptions() | End() | Release():
                if self._admission.in_flight(request):
                    return  # a repeat that came before the answer, which is on its way (C1b)
                refused = self._admission.take(request, body)
                if refused is not None:
                    self._refuse(request, refused)
                elif isinstance(body, Open | AddPartitions) and body.partitions:
                    self._register(data, request, body)
                elif isinstance(body, End) and self._known_ends.unproved(body.written):
                    self._prove(data, request, body)
                else:
                    self._calls.log(data, request)
            case _:
                assert_never(body)

    def _operator_asked(self, data: bytes, request: Request, body: RequestBody) -> None:
        """Takes a request from the topic that only operators and workers may write (C15)."""
        match body:
            case Describe() | ListTransactions():
                self._calls.answer(request, lambda: self._machine.asked(request, operator=True))
            case DescribeCoordinator():
                self._calls.answer(request, self._calls.stats)
            case WriteBarrier():
                self._calls.barrier(request, body)
            case Abort():
                wrong = wrong_values(request, body)
                if wrong:
                    self._refuse(request, Refused(wrong, RefusalCode.MALFORMED))
                else:
                    self._calls.log(data, request)
            case Open() | AddPartitions() | AddSubscriptions() | End() | Release() | Hello():
                reason = f"{type(body).__name__} is taken from {topics.TXN_REQUESTS} alone"
                self._refuse(request, Refused(reason, RefusalCode.UNSUPPORTED))
            case _:
                assert_never(body)

    def _described(self, request: Request) -> None:
        admission = self._admission
        refused = admission.ask(request.client_id)
        if refused is not None:
            self._refuse(request, refused)
            return

        def answer() -> Answer:
            admission.answered(request.client_id)
            return self._machine.asked(request, operator=False)

        self._calls.answer(request, answer, lambda: admission.answered(request.client_id))

    def _register(self, data: bytes, request: Request, body: Open | AddPartitions) -> None:
        """Logs a registration, once it is known that its partitions may be registered (C16, C18).

        The client repeats a request that is lost with a look.
        """

        def looked(finding: Refused | Missing | None) -> None:
            if self._over or not self._calls.serving():
                return
            if finding is None:
                self._calls.log(data, request)
                return
            self._admission.ended(request)
            if isinstance(finding, Refused):
                self._refuse(request, finding)

        topics, allowed = self._known_topics, body.allow_compacted
        partitions = [one.data for one in body.partitions]
        if unknown := topics.unknown(partitions, allow_compacted=allowed):
            topics.look(unknown, looked, allow_compacted=allowed)
        else:
            self._calls.log(data, request)

    def _prove(self, data: bytes, request: Request, body: End) -> None:
        """Logs a commit, once it is known that its end offsets can be true (C16)."""

        def proved(wrong: str | None) -> None:
            if self._over or not self._calls.serving():
                return
            if wrong == "":
                self._calls.log(data, request)
                return
            self._admission.ended(request)
            if wrong is not None:  # else the client repeats its request
                self._refuse(request, Refused(wrong, RefusalCode.MALFORMED))

        self._known_ends.prove(body.written, proved)

    def _refuse(self, request: Request, refused: Refused) -> None:
        self._calls.answer(request, lambda: refused)
