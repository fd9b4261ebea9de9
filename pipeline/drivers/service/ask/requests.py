"""Carries requests to the owners of logs and their answers back.

*Source*: docs/protocols A3 (the accumulator of log entries batches requests, too), C1b, C10, J1. A
`Service` names the owners: the coordinators, the pending-ack stores (G), or the snapshot writers
(E7).
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import EndReached
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.service.session import (
    ClientSession,
    GiveUp,
    OwnerSilent,
    Send,
)
from stilltide.pipeline.drivers.service.ask.batches import RequestBatches, Ways
from stilltide.pipeline.drivers.service.ask.direct_line import ClientLine
from stilltide.pipeline.drivers.service.ended import ended_error
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import START_TIMEOUT_S_MAX, OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import foreign_records
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.errors import (
    RequestTimeoutError,
    client_failed,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas import topics
from stilltide.schemas.coordinator import requests
from stilltide.schemas.coordinator.transactions import (
    Answer,
    Describe,
    Hello,
    ListTransactions,
    RequestBody,
)
from stilltide.schemas.errors import DecodeError, StilltideError, placed_each
from stilltide.schemas.framing import decode_value
from stilltide.schemas.pending_ack.acknowledgements import AckAnswer, AckQuestion
from stilltide.schemas.retry import REQUEST, RESPONSES
from stilltide.schemas.service.envelopes import (
    CLIENT_ID_BYTES,
    OwnerEnded,
    Request,
    Response,
    client_key,
    decode_notice,
    notice_key,
)
from stilltide.schemas.topics import TXN_RESPONSES
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

log = get_logger(__name__)

SILENT_MS = 2000.0
"""Time without an answer after which an application's log says what to check; an owner that serves
answers within milliseconds."""

CHECK_WORKER = (
    "that a worker runs for this cluster: `stilltide worker`; that it serves all owners: its"
    " /readyz, `stilltide coordinator stats`"
)

WAKES_PER_TURN = 64
"""Callers of one batch of answers wake up in groups of this size: the first ones' next requests are
sent while the others work. Otherwise client and owner would alternate, and one core be idle."""

B = TypeVar("B")
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class Service(Generic[B, A]):
    """The owners of one kind of log: the topic and the encoding of their requests and answers.

    Attributes:
        topic: topic of the requests; each partition has an owner and its own request numbers.
        owner: name of an owner in messages.
        encode: makes the bytes of a request.
        decode: reads an answer's bytes.
        for_operators: whether `topic` is one that only operators and workers may write (C15).
        hello: makes the question for a direct line from a nonce (J2); None: there are no lines.
        silent_check: what people are told to check when an owner is silent for `SILENT_MS`; None:
            they are not told.
        looks: whether a question fails at once when its owner has ended, since it only looks (B8).
    """

    topic: str
    owner: str
    encode: Callable[[Request[B]], bytes]
    decode: Callable[[bytes], Response[A]]
    for_operators: bool = False
    hello: Callable[[bytes], B] | None = None
    silent_check: str | None = None
    looks: Callable[[B], bool] = lambda _: False


COORDINATOR_SERVICE: Service[RequestBody, Answer] = Service(
    topics.TXN_REQUESTS,
    "coordinator",
    requests.encode_request,
    requests.decode_response,
    hello=Hello,
    silent_check=CHECK_WORKER,
)
COORDINATOR_OPERATOR_SERVICE = replace(
    COORDINATOR_SERVICE,
    topic=topics.OPERATOR_REQUESTS,
    for_operators=True,
    hello=None,
    silent_check=None,
    looks=lambda body: isinstance(body, Describe | ListTransactions),
)
"""The coordinators, asked by operators and workers about the transactions of any client."""


class Requests(Generic[B, A]):
    """Asks the owners of a service; `open` first, `close` last.

    Args:
        service: the service to ask.
        connector: the cluster.
        writer: appends requests; shared with the client's data.
        name: the client's name in lists and logs.
        request_timeout_s: the longest wait for an answer, repeats of the request included.
        resend_s: time without an answer after which a request is repeated.
        direct_lines: whether to look for direct lines to the owners (J).

    Attributes:
        name: the client's name.
        ways: the ways to the owners.
    """

    def __init__(
        self,
        service: Service[B, A],
        connector: Connector,
        writer: LogWriter,
        *,
        name: str,
        request_timeout_s: float,
        resend_s: float = REQUEST.first_s,
        direct_lines: bool = False,
    ) -> None:
        self.name = name
        self._service = service if direct_lines else replace(service, hello=None)
        self._connector = connector
        self._timeout_ms = request_timeout_s * 1000
        self._sessions: list[ClientSession[B, A]] = []
        self._batches: list[RequestBatches] = []
        self._waking: deque[tuple[asyncio.Future[A], A | StilltideError]] = deque()
        self._id = connector.chance.token(CLIENT_ID_BYTES)
        self.ways = Ways(service.topic, writer, self._id, operators=service.for_operators)
        self._new_session: Callable[..., ClientSession[B, A]] = partial(
            ClientSession,
            self._id,
            retry=REQUEST._replace(first_s=resend_s),
            silent_ms=None if service.silent_check is None else SILENT_MS,
        )
        self._reader = connector.reader(f"{name}-responses", committed=False)
        self._listening: asyncio.Task[None] | None = None
        self._alarm = Alarm(self._tick)
        self._failure: StilltideError | None = None
        self._ended = asyncio.Event()

    @property
    def client_id(self) -> bytes:
        """The secret in this client's requests; each object of this class has its own (C15)."""
        return self._id

    @property
    def home(self) -> int:
        """The partition for requests that any owner can serve; known after `open`.

        All such requests of a client go to one owner, so that they share records and log entries;
        several clients spread over the coordinators. `grow` may change it.
        """
        return home_of(self._id, len(self._sessions))

    async def open(self, *, partition_count: int, response_partition_count: int) -> None:
        """Starts to listen for answers."""
        partition = zlib.crc32(self._id) % response_partition_count
        data = TopicPartition(topics.TXN_RESPONSES, partition)
        async with closing(self._connector.admin()) as admin:
            ends = await admin.end_offsets([data])
        await self._reader.assign({data: Offset(ends[data])})
        self._new_session = partial(self._new_session, reply_partition=partition)
        self.grow(partition_count)
        self._listening = asyncio.create_task(self._listen_guarded(), name="responses")

    def grow(self, partition_count: int) -> None:
        """There are so many owners now; their number never falls (C14)."""
        for owner in range(len(self._sessions), partition_count):
            session = self._new_session()
            self._sessions.append(session)
            self._batches.append(RequestBatches(self.ways, owner, session))
            if self._service.hello is not None:
                self.ways.lines.append(self._line_to(owner, self._service.hello))

    async def close(self) -> None:
        """Fails every unanswered request and stops listening."""
        self._alarm.cancel()
        await self.ways.close()
        await cancelled(self._listening)
        await self._reader.close()
        self._fail_all(RequestTimeoutError("the client was closed before the answer came"))

    async def failed(self) -> NoReturn:
        """Waits until the client fails, and raises the error; no request is answered after that."""
        await self._ended.wait()
        assert self._failure is not None
        raise self._failure

    async def ask(self, partition: int, body: B) -> A:
        """Sends one request and returns its answer.

        Raises:
            RequestTimeoutError: no answer in time; whether the request took effect is unknown.
            ClientFailedError, or another StilltideError: the error that ended the client.
        """
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()

        def answered(answer: A | StilltideError) -> None:
            if not self._waking:
                asyncio.get_running_loop().call_soon(self._wake)
            self._waking.append((future, answer))

        self.tell(partition, body, answered)
        return await future

    def tell(self, partition: int, body: B, answered: Callable[[A | StilltideError], None]) -> None:
        """Sends one request; `answered` is called once, before any caller of `ask` wakes up."""
        if self._failure is not None:
            answered(self._failure)
            return
        now_ms = asyncio.get_running_loop().time() * 1000
        session = self._sessions[partition]
        request = session.made(body, now_ms, self._timeout_ms).request
        self._alarm.arm(session.deadline_ms, now_ms)
        self._batches[partition].append(request.number, self._service.encode(request), answered)

    def answers_received(self, answers: Sequence[bytes]) -> None:
        """Takes answers of neighbours; ignores them after the client has failed."""
        if self._failure is not None:
            return
        try:
            self._answered(answers)
        except Exception as error:  # noqa: BLE001 - raised from every call of this client
            self._fail_all(error)

    def notice_received(self, notice: OwnerEnded) -> None:
        """An owner has ended: people are told at once, and questions that only look fail (B8).

        Other requests are sent again until their time-out, since another worker may serve them.
        """
        if notice.owner < len(self._sessions):
            session, batches = self._sessions[notice.owner], self._batches[notice.owner]
            error = ended_error(self._service.owner, notice)
            if batches.ended != notice:
                log.warning("owner_has_ended", why=error.primary, hint=error.hint)
            batches.ended = notice
            for number in session.unanswered(self._service.looks):
                session.forget(number)
                batches.answered(number)(error)

    def _line_to(self, owner: int, hello: Callable[[bytes], B]) -> ClientLine:
        """The direct line to an owner, which is looked for when there is something to ask (J)."""
        session = self._sessions[owner]

        def answered(answers: Sequence[bytes]) -> None:
            # Answers that cannot be decoded end the line alone: their requests go by topic then.
            if self._failure is None:
                self._answered(answers)

        return ClientLine(
            self._id,
            ask=lambda nonce: self.ask(owner, hello(nonce)),
            answered=answered,
            repeat=lambda: self._run(owner, session.again()),
            pending=lambda: session.pending > 0,
            chance=self._connector.chance,
        )

    def _wake(self) -> None:
        """Wakes up to `WAKES_PER_TURN` callers in each turn of the loop."""
        waking = self._waking
        for _ in range(min(len(waking), WAKES_PER_TURN)):
            future, answer = waking.popleft()
            if future.done():
                continue
            if isinstance(answer, StilltideError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if waking:
            asyncio.get_running_loop().call_soon(self._wake)

    async def _listen_guarded(self) -> None:
        """Listens; an unexpected error ends the client, because its calls would hang otherwise."""
        try:
            await self._listen()
        except Exception as error:  # noqa: BLE001 - raised from every call of this client
            self._fail_all(error)

    async def _listen(self) -> None:
        keys = notice_key(self._id), client_key(self._id)
        away = False
        while self._failure is None:
            try:
                items = await self._reader.read()
            except RetriableError as error:
                if not away:
                    log.warning("responses_unreadable", why=error.primary)
                away = True
                await asyncio.sleep(RESPONSES.wait_s(1))
                continue
            away = False
            with placed_each(items, StilltideError) as each:
                for item in each:
                    if isinstance(item, EndReached) or item.key not in keys:
                        continue
                    if self._failure is not None:
                        return  # the client failed while these answers were read
                    try:
                        if item.key == keys[0]:
                            self.notice_received(decode_notice(item.value))
                        else:
                            self._answered(decode_value(item.value))
                    except DecodeError as error:  # a lost answer: the request is repeated (C1b)
                        passed_over = foreign_records(self._connector)
                        passed_over.add(item.data, item.offset, item.value, error.primary)

    def _answered(self, records: Sequence[bytes]) -> None:
        """Takes answers.

        Raises:
            DecodeError: some are no answers; the other ones were taken.
        """
        failed: DecodeError | None = None
        now_ms = asyncio.get_running_loop().time() * 1000
        for record in records:
            try:
                number, partition, answer = self._service.decode(record)
            except DecodeError as error:
                failed = error
                continue
            if partition >= len(self._sessions):
                owner = self._service.owner
                failed = DecodeError(f"an answer of {owner} {partition}, which there is not")
                continue
            self._batches[partition].ended = None
            if self._sessions[partition].answered(number, answer, now_ms) is not None:
                self._batches[partition].answered(number)(answer)
        if failed is not None:
            raise failed

    def _tick(self) -> None:
        if self._failure is not None:
            return  # every caller has got the error
        try:
            now_ms = asyncio.get_running_loop().time() * 1000
            for partition, session in enumerate(self._sessions):
                deadline_ms = session.deadline_ms
                if deadline_ms is not None and deadline_ms <= now_ms:
                    self._run(partition, session.tick(now_ms))
                self._alarm.arm(session.deadline_ms, now_ms)
        except Exception as error:  # noqa: BLE001 - raised from every call of this client
            self._fail_all(error)

    def _run(self, partition: int, effects: Sequence[Send[B] | GiveUp | OwnerSilent]) -> None:
        for effect in effects:
            match effect:
                case Send(request):
                    encoded = self._service.encode(request)
                    self._batches[partition].repeat(request.number, encoded)
                case OwnerSilent(waited_ms):
                    log.warning(
                        "no_answer_yet",
                        owner=f"{self._service.owner} {partition}",
                        waited_s=round(waited_ms / 1000, 1),
                        check=self._service.silent_check,
                    )
                case GiveUp(number):
                    self._batches[partition].answered(number)(self._timed_out(partition))

    def _timed_out(self, partition: int) -> RequestTimeoutError:
        problem = self._batches[partition].problem
        detail = "whether the request took effect is unknown"
        if (notice := self._batches[partition].ended) is not None:
            return ended_error(self._service.owner, notice, detail)
        if problem is not None:
            detail += f"; its last copy was not delivered: {problem.primary}: {problem.detail}"
        return RequestTimeoutError(
            f"no answer from {self._service.owner} {partition} "
            f"within {self._timeout_ms / 1000:g} s",
            detail=detail,
            hint=problem.hint
            if problem is not None and problem.hint
            else "is a worker running for this cluster? start one with `stilltide worker`",
        )

    def _fail_all(self, error: Exception) -> None:
        """Ends the client: every open and every later request is answered by the error."""
        failure = error if isinstance(error, StilltideError) else client_failed(error)
        if self._failure is None:
            self._failure = failure
        self._ended.set()
        for answered in [waits for batches in self._batches for waits in batches.close()]:
            answered(self._failure)


def home_of(client_id: bytes, count: int) -> int:
    """The owner that serves requests of a client which any of `count` owners can serve."""
    return zlib.crc32(client_id[::-1]) % count


CoordinatorRequests = Requests[RequestBody, Answer]
AckRequests = Requests[AckQuestion, AckAnswer]

LogBounds = Mapping[int, tuple[Offset, EndOffset]]
"""Start offset and end offset of each log, by partition."""


class OwnerLine(Generic[B, A]):
    """An asynchronous context manager: the connection is open from entry to exit.

    Args:
        service: the service to ask.
        log_topic: topic of the owners' logs, with as many partitions as the topic of requests;
            None for who has no right to the logs.
        connector: the cluster.
        name: the program's name in client ids and logs.
        request_timeout_s: the longest wait for one answer, repeats of the request included.
        patient: whether entry waits for a cluster that is away, as long as for an answer, and a
            minute at most.

    Attributes:
        count: number of owners; known after entry.

    Raises:
        FatalError: on entry: the system topics do not exist.
        RetriableError: on entry: the cluster cannot be reached; names its address.
        UnavailableError: on entry, if `patient`: the cluster cannot be reached.
    """

    def __init__(
        self,
        service: Service[B, A],
        log_topic: str | None,
        connector: Connector,
        *,
        name: str = "admin",
        request_timeout_s: float,
        patient: bool = False,
    ) -> None:
        self.count = 0
        self._log_topic = log_topic
        self._asked_at = service.topic
        self._connector = connector
        self._patience_s = min(request_timeout_s, START_TIMEOUT_S_MAX) if patient else None
        self._name = name
        self._request_timeout_s = request_timeout_s
        self._service = service
        self._writer: LogWriter | None = None
        self._requests: Requests[B, A] | None = None

    @property
    def requests(self) -> Requests[B, A]:
        """What asks the owners; there from entry on."""
        assert self._requests is not None, "entered"
        return self._requests

    async def __aenter__(self) -> Self:
        needed = [it for it in (self._log_topic, self._asked_at, TXN_RESPONSES) if it is not None]
        try:
            async with closing(self._connector.admin()) as admin:
                if self._patience_s is None:
                    described = await admin.describe_topics(needed)
                else:
                    outages = OutageGuard(admin, timeout_s=self._patience_s)
                    described = await outages.call(admin.describe_topics, needed)
            require_topics(needed, described)
            self.count = described[self._asked_at].partition_count
            self._writer = self._connector.writer(self._name)  # connects at once
            self._requests = Requests(
                self._service,
                self._connector,
                self._writer,
                name=self._name,
                request_timeout_s=self._request_timeout_s,
            )
            await self._requests.open(
                partition_count=self.count,
                response_partition_count=described[TXN_RESPONSES].partition_count,
            )
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def look_again(self) -> None:
        """Takes note of owners that were added since entry (C14).

        Raises:
            ConnectorError: the cluster cannot be asked.
        """
        async with closing(self._connector.admin()) as admin:
            described = await admin.describe_topics([self._asked_at])
        require_topics([self._asked_at], described)
        self.count = max(self.count, described[self._asked_at].partition_count)
        self.requests.grow(self.count)

    async def ask(self, owner: int, body: B) -> A:
        """One owner's answer.

        Raises:
            RequestTimeoutError: no answer in time; the owner may still carry out the request.
        """
        return await self.requests.ask(owner, body)

    async def each(self, ask: Callable[[int], Awaitable[T]]) -> dict[int, T | None]:
        """The result of `ask` for every owner, by number; None: no answer in time."""

        async def answer(owner: int) -> T | None:
            try:
                return await ask(owner)
            except RequestTimeoutError:
                return None

        answers = await asyncio.gather(*map(answer, range(self.count)))
        return dict(enumerate(answers))

    async def log_bounds(self) -> LogBounds:
        """Start offset and end offset of each log."""
        assert self._log_topic is not None
        logs = [TopicPartition(self._log_topic, number) for number in range(self.count)]
        async with closing(self._connector.admin()) as admin:
            starts = await admin.start_offsets(logs)
            ends = await admin.end_offsets(logs)
        return {log.partition: (starts[log], ends[log]) for log in logs}

    async def _close(self) -> None:
        if self._requests is not None:
            await self._requests.close()
        if self._writer is not None:
            await self._writer.close()
