"""Named points inside of processes at which a fault strikes a prepared transaction.

A point is armed by a file of its name. The first process that comes to an armed point tells the
campaign by a socket, and waits for the answer, so that the fault strikes exactly there: whichever
process is killed, the process that came to the point has not gone on.

The hooks wrap what the product calls; the product knows nothing of them. Where a library does the
step (SQLAlchemy in a resolver), its own events are the hook.
"""

import asyncio
import functools
import os
import socket
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

SOCKET = "campaign"


class Point(StrEnum):
    """Where a process may be when a fault strikes; the value says what has happened."""

    ROW_DUE = "the row is not inserted yet"
    ROW = "the row is inserted"
    PREPARE_ASKED = "prepare was asked for"
    PREPARED = "prepare was answered"
    COMMITTING = "the database commits"
    COMMITTED = "the database has committed"
    ASK_DUE = "the client has not asked the database yet"
    DATABASE_ASKED = "the client has asked the database"
    END_ASKED = "the end was asked for"
    END_ANSWERED = "the end was answered"

    INSERTED = "the resolver has inserted"
    READ_DUE = "the resolver has not read yet"
    DECIDE_DUE = "the resolver has read"
    DECIDE_ASKED = "the resolver has asked"
    DELETE_DUE = "the resolver has not deleted yet"

    PREPARE_DUE = "the worker has not appended prepare yet"
    PREPARE_LOGGED = "prepare is in the log"
    DECISION_DUE = "the worker has not appended the decision yet"
    DECISION_LOGGED = "the decision is in the log"
    MARKER_DUE = "no marker is written yet"
    MARKED = "a marker is written"


OF_APPLICATIONS = tuple(Point)[:10]
OF_RESOLVERS = tuple(Point)[10:15]
OF_WORKERS = tuple(Point)[15:]


class Hooks:
    """The points of one process.

    Args:
        folder: of the campaign.
        role: what the process is.
    """

    def __init__(self, folder: Path, role: str) -> None:
        self._folder = folder
        self._role = role

    def armed(self, point: Point) -> bool:
        """Whether a fault waits at the point; costs one look at a folder."""
        return os.path.exists(f"{self._folder}/{point.name}")  # noqa: PTH110 - the hooks are passed often

    def reach(self, point: Point) -> None:
        """Waits while a fault strikes, if the point is armed."""
        if not self.armed(point):
            return
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(str(self._folder / SOCKET))
                line.sendall(f"{point.name} {self._role} {os.getpid()}\n".encode())
                line.recv(1)
            except OSError:
                return  # the campaign has ended

    def asks(self, points: dict[type, tuple[Point | None, Point | None, Point | None]]) -> None:
        """Hooks requests by kind of body: before the request, without an answer, and answered."""
        from stilltide.pipeline.drivers.service.ask.requests import Requests  # noqa: PLC0415

        ask = Requests.ask

        @functools.wraps(ask)
        async def hooked(requests: Any, partition: int, body: Any) -> Any:
            before, asked, answered = points.get(type(body), (None, None, None))
            if before is not None:
                self.reach(before)
            asking = asyncio.ensure_future(ask(requests, partition, body))
            if asked is not None and self.armed(asked):
                for _ in range(3):  # the request goes to the network, in whichever way it goes
                    await asyncio.sleep(0)
                self.reach(asked)
            answer = await asking
            if answered is not None:
                self.reach(answered)
            return answer

        Requests.ask = hooked  # type: ignore[method-assign]

    def before(self, cls: type, name: str, point: Callable[..., Point | None]) -> None:
        """Hooks the begin of a method; `point` gets the method's arguments."""
        self._wrap(cls, name, point, None)

    def after(self, cls: type, name: str, point: Point) -> None:
        """Hooks the end of a method that is not awaited."""
        self._wrap(cls, name, lambda *_, **__: None, point)

    def _wrap(
        self, cls: type, name: str, before: Callable[..., Point | None], after: Point | None
    ) -> None:
        method = getattr(cls, name)

        @functools.wraps(method)
        def hooked(*arguments: Any, **keywords: Any) -> Any:
            point = before(*arguments, **keywords)
            if point is not None:
                self.reach(point)
            result = method(*arguments, **keywords)
            if after is not None:
                self.reach(after)
            return result

        setattr(cls, name, hooked)


def hook_application(hooks: Hooks) -> None:
    """The points of a client; those of its database are in the application itself."""
    from stilltide.connectors.databases.table import DatabaseTable  # noqa: PLC0415
    from stilltide.schemas.coordinator.transactions import EndPrepared, Prepare  # noqa: PLC0415

    outcomes = DatabaseTable.outcomes

    @functools.wraps(outcomes)
    async def asked(*arguments: Any) -> Any:
        hooks.reach(Point.ASK_DUE)
        rows = await outcomes(*arguments)
        hooks.reach(Point.DATABASE_ASKED)
        return rows

    DatabaseTable.outcomes = asked  # type: ignore[method-assign]
    hooks.asks(
        {
            Prepare: (Point.ROW, Point.PREPARE_ASKED, None),
            EndPrepared: (None, Point.END_ASKED, Point.END_ANSWERED),
        }
    )


def hook_resolver(hooks: Hooks) -> None:
    """The points of a resolver: its statements, and what it asks coordinators."""
    from sqlalchemy import Engine, event  # noqa: PLC0415

    from stilltide.connectors.databases.table import DatabaseTable  # noqa: PLC0415
    from stilltide.schemas.coordinator.transactions import Decide  # noqa: PLC0415

    def before(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE FROM stilltide_decisions"):
            hooks.reach(Point.DELETE_DUE)

    def after(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO stilltide_decisions"):
            hooks.reach(Point.INSERTED)

    hooks.before(DatabaseTable, "outcomes", lambda *_: Point.READ_DUE)
    event.listen(Engine, "before_cursor_execute", before)
    event.listen(Engine, "after_cursor_execute", after)
    hooks.asks({Decide: (Point.DECIDE_DUE, Point.DECIDE_ASKED, None)})


def hook_worker(hooks: Hooks) -> None:
    """The points of coordinators, and those of the worker's resolver."""
    from stilltide.pipeline.drivers.coordinator.marker_log import MarkerLog  # noqa: PLC0415
    from stilltide.pipeline.drivers.coordinator.owner import CoordinatorOwner  # noqa: PLC0415
    from stilltide.schemas.coordinator.transactions import (  # noqa: PLC0415
        Decide,
        EndPrepared,
        Prepare,
    )
    from stilltide.schemas.service.envelopes import Request  # noqa: PLC0415

    due = {
        Prepare: Point.PREPARE_DUE,
        Decide: Point.DECISION_DUE,
        EndPrepared: Point.DECISION_DUE,
    }
    logged = {Prepare: Point.PREPARE_LOGGED, Decide: Point.DECISION_LOGGED}

    def read_back(_owner: Any, offset: Any, records: Any, *, own: bool) -> Point | None:
        """The entry of this owner is effective, and nobody is answered yet."""
        if not own or offset is None:
            return None
        bodies = [it.body.body for it in records if isinstance(it.body, Request)]
        return next((logged[type(it)] for it in bodies if type(it) in logged), None)

    hooks.before(
        CoordinatorOwner, "log_request", lambda _owner, _data, request: due.get(type(request.body))
    )
    hooks.before(CoordinatorOwner, "applied", read_back)
    hooks.before(MarkerLog, "write", lambda *_: Point.MARKER_DUE)
    hooks.after(MarkerLog, "write", Point.MARKED)
    hook_resolver(hooks)
