"""Checks claims of subscriptions: is the member in the group, as the group's coordinator says?

*Source*: docs/protocols C15, G4. Kafka lets only those join a group who have the right to.

*Invariants*: one question to the coordinators at a time, for all claims of a group meanwhile.
"""

import asyncio
from collections.abc import Callable

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.pending_ack.acknowledgements import AckRefusalCode, AckRefused
from stilltide.schemas.values import EndOffset, TopicPartition

log = get_logger(__name__)

Checked = Callable[[AckRefused | None], None]
"""Called with why the claim is refused; None: it is good."""


class Claims:
    """The claims at one pending-ack store."""

    def __init__(self, groups: GroupAdmin) -> None:
        self._groups = groups
        self._asked: list[tuple[str, str, Checked]] = []
        self._asking: asyncio.Task[None] | None = None

    def check(self, group: str, member: str, checked: Checked) -> None:
        """Calls `checked` once; never if the coordinator is away, since clients repeat a claim."""
        if not member:
            reason = "the claim names no member of the group"
            checked(AckRefused(AckRefusalCode.MALFORMED, reason))
            return
        self._asked.append((group, member, checked))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="claims")

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            by_group: dict[str, list[tuple[str, Checked]]] = {}
            for group, member, checked in asked:
                by_group.setdefault(group, []).append((member, checked))
            for group, claims in by_group.items():
                await self._ask_group(group, claims)

    async def _ask_group(self, group: str, claims: list[tuple[str, Checked]]) -> None:
        """One group at a time: a right that is missing for one must not stop the others."""
        refused: AckRefused | None = None
        members: set[str] = set()
        try:
            members = await self._groups.members(group)
        except RetriableError as error:
            log.warning("group_not_described", group=group, claims=len(claims), why=str(error))
            return
        except ConnectorError as error:
            log.warning("group_not_described", group=group, claims=len(claims), why=str(error))
            reason = f"the worker cannot describe group {group}: {error.primary}"
            refused = AckRefused(AckRefusalCode.NOT_IN_GROUP, reason)
        for member, checked in claims:
            if refused is not None or member in members:
                checked(refused)
            else:
                reason = f"group {group} has no member {member[:100]!r}"
                checked(AckRefused(AckRefusalCode.NOT_IN_GROUP, reason))


KNOWN_MAX = 10_000
"""Partitions of which an end is kept; at the limit all are forgotten."""

Answered = Callable[[EndOffset | None], None]
"""Called with the end of the partition's log; None: it is not known."""


class LogEnds:
    """The ends of logs, as of the last question.

    Args:
        admin: admin client of the cluster; the caller closes it.
    """

    def __init__(self, admin: LogAdmin) -> None:
        self._admin = admin
        self._known: dict[TopicPartition, EndOffset] = {}
        self._asked: list[tuple[TopicPartition, Answered]] = []
        self._asking: asyncio.Task[None] | None = None

    def holds(self, data: TopicPartition, offset: int) -> bool:
        """Whether the log is known to hold an offset, or to have held it."""
        return offset < self._known.get(data, 0)

    def ask(self, data: TopicPartition, answered: Answered) -> None:
        """Calls `answered` once; never if the cluster is away, since requests are repeated."""
        self._asked.append((data, answered))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="log-ends")

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            try:
                ends = await self._admin.end_offsets(sorted({data for data, _ in asked}))
            except RetriableError as error:
                log.warning("log_ends_not_read", partitions=len(asked), why=str(error))
                continue
            except ConnectorError as error:
                # A store that settled nothing would keep transactions open for ever.
                log.warning("log_ends_not_read", partitions=len(asked), why=str(error))
                ends = dict[TopicPartition, EndOffset]()
            if len(self._known) + len(ends) > KNOWN_MAX:
                self._known.clear()
            self._known |= ends
            for data, answered in asked:
                answered(ends.get(data))
