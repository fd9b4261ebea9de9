"""Polls of a member, told with times from which a judge may draw conclusions.

A process may be frozen at any moment, also between a message and the line that tells of it. So a
poll is told with the time before its call, and a session with a time at which it had not begun.
"""

import asyncio
import time

from stilltide import Message, Subscription
from tests.chaos.proxied.programs.telling import Role, Telling


class Polling:
    """The polls of one subscription.

    Attributes:
        open: what was polled in the present session and is not acknowledged: value by offset, for
            each partition.
        session: `rebalance_count` at the last poll.
    """

    def __init__(self, role: Role, telling: Telling, subscription: Subscription) -> None:
        self.open: dict[tuple[str, int], dict[int, str]] = {}
        self.session = -1
        self._role, self._telling, self._subscription = role, telling, subscription
        self._looked_ns = self._since_ns = time.monotonic_ns()
        self._member = f"{role.name}.{role.run}.{self._looked_ns}"

    async def next(self, longest_s: float = 0.5) -> Message | None:
        """The next message; None if none has come for so long."""
        self._look()
        try:
            async with asyncio.timeout(longest_s):
                message = await anext(self._subscription)
        except TimeoutError:
            return None
        at_ns = self._looked_ns
        self._look(at_ns)
        value = (message.value or b"").decode()
        self.open.setdefault((message.topic, message.partition), {})[message.offset] = value
        self._telling.tell(
            "poll",
            at_ns=at_ns,
            since_ns=self._since_ns,
            group=self._role.group,
            member=self._member,
            session=self.session,
            cluster=self._role.cluster,
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            value=value,
        )
        return message

    def upto(self, message: Message) -> list[str]:
        """What a cumulative acknowledgement of a message covers."""
        polled = self.open.get((message.topic, message.partition), {})
        return [value for offset, value in sorted(polled.items()) if offset <= message.offset]

    def close(self, message: Message, *, cumulative: bool = False) -> None:
        """A message, or all up to it, is acknowledged."""
        polled = self.open.get((message.topic, message.partition), {})
        for offset in [it for it in polled if it == message.offset or cumulative]:
            if offset <= message.offset:
                del polled[offset]

    def _look(self, looked_ns: int | None = None) -> None:
        """Notices a session; it began after the last look at the latest that saw another one."""
        at_ns = time.monotonic_ns()
        if self._subscription.rebalance_count != self.session:
            self.session, self._since_ns = self._subscription.rebalance_count, self._looked_ns
            self.open.clear()
        self._looked_ns = looked_ns or at_ns
