"""What keeps a worker from doing its work, for `/readyz`, metrics and the log.

*Source*: docs/protocols C17.

*Invariants*: what fails is counted each time and logged once in a period; work hinders once it has
failed again and again for a few seconds, and until the next success, or until it was not tried for
a while. A single failure hinders nobody: it may be the fault of a single record. While the whole
cluster is away, only its watch says so (B9).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from stilltide.connectors.errors import (
    ConnectorError,
    FencedError,
    NotAuthorizedError,
    RetriableError,
)
from stilltide.connectors.ports.admin import RightsAsker
from stilltide.pipeline.drivers.shared.cluster_watch import ProbeResult
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import HINDERED, ReportedEnd
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

LOOK_S = 5.0
"""Seconds between two questions for the rights."""

SILENCE_LOOK_S = 1.0
"""Seconds between two looks for work that is under way and hears nothing."""

HINDERED_AFTER_S = 5.0
"""Seconds without a success after which work that fails hinders: a broker that moves a partition
refuses writes for less."""

SILENT_AFTER_S = 10.0
"""Seconds without any report after which work hinders: an absence of the whole cluster is noticed
sooner, and is the matter of its watch (B9)."""

LOG_AGAIN_S = 60.0
"""Seconds between two lines about one matter."""

FORGOTTEN_S = 30.0
"""Seconds without another failure after which work that is not tried any more hinders nobody."""

SHOWN_MAX = 5
"""Hindrances that `/readyz` names; metrics and the log have all."""

SILENT = "NO_REPORT"
"""The reason of work that hears nothing."""

ENTRIES = "entries"
"""The kind of work of a log's owner."""

NEEDED = (Operation.READ, Operation.WRITE, Operation.DELETE)
"""What a worker does with every system topic while it serves; the rest is needed at its start."""

Explain = Callable[[str], Awaitable[ConnectorError | None]]
"""Finds out why nothing is reported of writes to a place; None: nothing was found."""


class Seldom:
    """Lets one line in `again_s` pass for each matter; to be used on a running event loop."""

    def __init__(self, again_s: float = LOG_AGAIN_S) -> None:
        self._again_s = again_s
        self._said: dict[str, float] = {}

    def due(self, matter: str = "") -> bool:
        """Whether a line about this matter is due; it counts as written then."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said.get(matter, -self._again_s) < self._again_s:
            return False
        self._said = {it: at for it, at in self._said.items() if now_s - at < self._again_s}
        self._said[matter] = now_s
        return True


@dataclass(slots=True, eq=False)
class Work:
    """One kind of work at one place; made by `Hindrances.work`.

    Attributes:
        name: kind of the work, such as `entries`.
        place: where it is done, such as `stilltide.txn-log/0`; empty: at no place in particular.
        doer: what does it, if several do the same at one place, such as `the link from a`.
        under_way: tries whose result is not known.
        since_s: loop time of the last success, or of the first try since there was nothing to do.
        error: the newest failure since the last success; None: none.
        failed_s: loop time of that failure.
        repeated: whether the work has failed more than once since then, or is silent for long.
    """

    name: str
    place: str
    doer: str = ""
    under_way: int = 0
    since_s: float = 0.0
    error: ConnectorError | None = None
    failed_s: float = 0.0
    repeated: bool = False

    @property
    def shown(self) -> str:
        """The work, its place and its doer in words."""
        place = f" of {self.place}" if self.place else ""
        return f"{self.name}{place}{f' by {self.doer}' if self.doer else ''}"

    def begun(self, now_s: float) -> None:
        """A try has begun."""
        if not self.under_way and self.error is None:
            self.since_s = now_s
        self.under_way += 1

    def succeeded(self, now_s: float) -> None:
        """A try has succeeded."""
        self.under_way -= 1
        self.since_s = now_s
        if self.error is not None:
            self.done(now_s)

    def done(self, now_s: float) -> None:
        """The work was done, or there is none any more."""
        self.since_s, self.error, self.repeated = now_s, None, False

    def failed(self, error: ConnectorError, now_s: float) -> None:
        """A try has failed."""
        self.repeated = self.error is not None
        self.error, self.failed_s = error, now_s

    def hinders(self, now_s: float) -> bool:
        """Whether it has had no success for too long."""
        if isinstance(self.error, NotAuthorizedError):
            return True
        if self.error is not None and self.error.reason != SILENT:
            return self.repeated and now_s - self.since_s >= HINDERED_AFTER_S
        return bool(self.under_way) and now_s - self.since_s >= SILENT_AFTER_S

    def is_silent(self, now_s: float) -> bool:
        """Whether to ask why nothing is heard of it; once in `LOOK_S`."""
        if self.error is not None:
            asked = self.error.reason == SILENT and now_s - self.failed_s >= LOOK_S
            return asked and bool(self.under_way)
        return self.hinders(now_s)


class Hindrances:
    """The work that fails now, by kind and place (C17).

    Args:
        away: whether the whole cluster is away, so that nothing is said of its single topics.

    Attributes:
        failures: number of failures since the start, by kind of work and reason.
        missing: the rights that the cluster did not give at the last question.
    """

    def __init__(self, away: Callable[[], bool] = lambda: False) -> None:
        self.failures: Counter[tuple[str, str]] = Counter()
        self.missing: Sequence[NotAuthorizedError] = ()
        self._missing_s: dict[str, float] = {}  # since when, by what is said of it
        self._away = away
        self._works: dict[tuple[str, str, str], Work] = {}
        self._logged = Seldom()

    def work(self, name: str, place: str = "", doer: str = "") -> Work:
        """The work of this kind at this place, done by this doer."""
        key = name, place, doer
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = Work(*key)
        return work

    @contextmanager
    def trying(self, name: str, place: str = "") -> Iterator[None]:
        """Notes whether the block succeeds; the work of a fenced owner is another worker's."""
        work, now_s = self.work(name, place), asyncio.get_running_loop().time
        work.begun(now_s())
        try:
            yield
        except FencedError:
            work.succeeded(now_s())
            raise
        except ConnectorError as error:
            work.under_way -= 1
            self.failed_at(work, error)
            raise
        except BaseException:
            work.under_way -= 1
            raise
        work.succeeded(now_s())

    @asynccontextmanager
    async def entries(self, topic: str, number: int) -> AsyncIterator[None]:
        """The time for which a log is this worker's: afterwards its entries are another's work."""
        try:
            yield
        finally:
            self.done(ENTRIES, str(TopicPartition(topic, number)))

    def failed(self, name: str, error: ConnectorError) -> None:
        """Some work of this kind was not done."""
        work, now_s = self.work(name), asyncio.get_running_loop().time()
        if work.error is None and not work.under_way:
            work.since_s = now_s
        self.failed_at(work, error)

    def done(self, name: str, place: str = "") -> None:
        """Work of this kind at this place was done again, by whatever way."""
        work = self._works.get((name, place, ""))
        if work is not None and work.error is not None:
            work.done(asyncio.get_running_loop().time())

    def failed_at(self, work: Work, error: ConnectorError) -> None:
        """A try of the work has failed."""
        now_s = asyncio.get_running_loop().time()
        work.failed(error, now_s)
        self.failures[work.name, reason_of(error)] += 1
        if work.hinders(now_s):
            self._say(work, error)

    def rights(self, missing: Sequence[NotAuthorizedError]) -> None:
        """The cluster has told which rights are missing."""
        self.missing = missing
        now_s, since_s = asyncio.get_running_loop().time(), self._missing_s
        self._missing_s = {it.primary: since_s.get(it.primary, now_s) for it in missing}
        for error in missing:
            self.failures["rights", reason_of(error)] += 1
            self._log(error.primary, "right_missing", error)

    def finding(self) -> ProbeResult:
        """What `/readyz` says."""
        texts = [error.primary for error in self.missing]
        texts += [text_of(work, error) for work, error in self._hindering()]
        if not texts:
            return ProbeResult(passed=True, text="nothing hinders it")
        if more := len(texts) - SHOWN_MAX:
            texts = [*texts[:SHOWN_MAX], f"and {more} more"] if more > 0 else texts
        return ProbeResult(passed=False, text="; ".join(texts))

    def why(self, place: str) -> str:
        """What keeps records from this place now, even if for a moment only; empty: nothing."""
        if self._away():
            return ""
        now_s = asyncio.get_running_loop().time()
        return "; ".join(
            text_of(work, work.error)
            for work in self._works.values()
            if work.place == place
            and work.error is not None
            and (work.repeated or work.hinders(now_s))
        )

    def reported(self, now_ms: int) -> tuple[ReportedEnd, ...]:
        """What operators are told of, as of the owners that have ended.

        Args:
            now_ms: wall clock, milliseconds since 1970.
        """
        ahead_ms = now_ms - asyncio.get_running_loop().time() * 1000
        entries = [
            ("rights", self._missing_s[error.primary], error.primary, error.hint)
            for error in self.missing
        ]
        entries += [
            (work.shown, work.since_s, text_of(work, error), error.hint)
            for work, error in self._hindering()
        ]
        return tuple(
            ReportedEnd(HINDERED, name, round(since_s * 1000 + ahead_ms), why, hint)
            for name, since_s, why, hint in entries[:SHOWN_MAX]
        )

    async def run(self, explain: Explain) -> None:
        """Looks for work that is under way and hears nothing, until cancelled."""
        while True:
            await asyncio.sleep(SILENCE_LOOK_S)
            now_s = asyncio.get_running_loop().time()
            for work in list(self._works.values()):
                if work.is_silent(now_s) and not self._away():
                    await self._explain(work, explain)

    async def _explain(self, work: Work, explain: Explain) -> None:
        cause: ConnectorError | None = None
        if work.place:
            try:
                cause = await explain(work.place)
            except ConnectorError as error:
                log.debug("silence_not_explained", place=work.place, why=error.primary)
        if not work.under_way:
            return
        cause = cause or _silence(work)
        first = work.error is None or work.error.reason != cause.reason
        work.failed(cause, asyncio.get_running_loop().time())
        work.repeated = True
        if first:
            self.failures[work.name, reason_of(cause)] += 1
        self._say(work, cause)

    def _hindering(self) -> list[tuple[Work, ConnectorError]]:
        now_s = asyncio.get_running_loop().time()
        if self._away():
            return []
        hindering: list[tuple[Work, ConnectorError]] = []
        for work in self._works.values():
            if work.error and not work.under_way and now_s - work.failed_s > FORGOTTEN_S:
                work.done(now_s)
            if work.hinders(now_s):
                hindering.append((work, work.error or _silence(work)))
        return hindering

    def _say(self, work: Work, error: ConnectorError) -> None:
        if not self._away():
            key = f"{work.name} {reason_of(error)}"
            more = {"doer": work.doer} if work.doer else {}
            self._log(key, "work_hindered", error, work=work.name, place=work.place, **more)

    def _log(self, key: str, event: str, error: ConnectorError, **more: str) -> None:
        if not self._logged.due(key):
            return
        if isinstance(error, NotAuthorizedError):
            more |= {
                "operation": error.operation,
                "resource": error.resource,
                "principal": error.principal,
            }
        log.error(event, why=error.primary, detail=error.detail, hint=error.hint, **more)


def reason_of(error: ConnectorError) -> str:
    """The cluster's name of the cause, or the kind of the error."""
    return error.reason or type(error).__name__


def text_of(work: Work, error: ConnectorError) -> str:
    """One line: what is not done where, why, and the next step."""
    reason = f" ({error.reason})" if error.reason else ""
    hint = "" if isinstance(error, NotAuthorizedError) or not error.hint else f": {error.hint}"
    return f"{work.shown}: {error.primary}{reason}{hint}"


def _silence(work: Work) -> ConnectorError:
    error = RetriableError(
        f"nothing was heard of {work.under_way} tries for {SILENT_AFTER_S:g} s and more",
        hint="see the brokers' logs, their disks, and `stilltide topics check`",
    )
    error.reason = SILENT
    return error


class RightsWatch:
    """Asks a cluster for this process's rights in `run`, until cancelled.

    Args:
        asker: asks the cluster.
        hindrances: where missing rights are noted.
        topics: names of the system topics.
        group: the group of the workers.
        look_s: seconds between two questions.
        unseen: further rights that are missing, on topics of applications (C18).
    """

    def __init__(
        self,
        asker: RightsAsker,
        hindrances: Hindrances,
        topics: Collection[str],
        group: str,
        *,
        look_s: float = LOOK_S,
        unseen: Callable[[], Sequence[NotAuthorizedError]] = tuple,
    ) -> None:
        self._asker = asker
        self._hindrances = hindrances
        self._topics = topics
        self._group = group
        self._look_s = look_s
        self._unseen = unseen

    async def run(self) -> None:
        """Asks every `look_s`; a cluster that is away is the matter of `ClusterWatch`."""
        try:
            while True:
                try:
                    missing = await self._asker.missing(self._topics, NEEDED, self._group)
                except ConnectorError as error:
                    log.debug("rights_not_told", why=error.primary)
                else:
                    self._hindrances.rights([*missing, *self._unseen()])
                await asyncio.sleep(self._look_s)
        finally:
            await self._asker.close()
