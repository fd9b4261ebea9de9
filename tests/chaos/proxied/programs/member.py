"""A program that reads as a member of a group: by positions, or by acknowledgements of all kinds.

`python -m tests.chaos.proxied.programs.member ROLE`; SIGTERM makes it leave.
"""

import asyncio
import sys
from pathlib import Path

from stilltide import AcknowledgementError, FencedError, Message, StilltideError, Subscription
from tests.chaos.proxied.programs.polling import Polling
from tests.chaos.proxied.programs.telling import Role, Stop, Telling
from tests.chaos.proxied.topics import BY_NAME

AGAIN_S = 0.5


class Member:
    """What a process does."""

    def __init__(self, role: Role, stop: Stop) -> None:
        self._role, self._stop = role, stop
        self._telling = Telling(Path(role.path))
        self._random = role.random
        self._acknowledges = role.mode == "acknowledgements"
        self._done: list[str] = []
        """What was acknowledged in the present session, or is below the position of a commit."""

    async def run(self) -> None:
        """Reads until SIGTERM, and joins the group again after an error."""
        while not self._stop.asked:
            try:
                async with Subscription(
                    BY_NAME[self._role.group].topics,
                    group=self._role.group,
                    bootstrap_servers=self._role.bootstrap,
                    client_id=self._role.name,
                    acknowledgements=self._acknowledges,
                    redelivery_delay_s=0.5,
                    redelivery_delay_s_max=2,
                ) as subscription:
                    await self._read(subscription)
            except StilltideError as error:
                self._telling.tell("away", why=str(error))
                await self._stop.pause(AGAIN_S)

    async def _read(self, subscription: Subscription) -> None:
        polling = Polling(self._role, self._telling, subscription)
        session = -1
        while not self._stop.asked:
            message = await polling.next()
            if polling.session != session:
                session, self._done = polling.session, []
            if message is None:
                continue
            if self._acknowledges:
                self._acknowledge(subscription, polling, message)
            else:
                self._handled([(message.value or b"").decode()])
            if self._random.random() < 0.1:
                await self._commit(subscription, session)

    def _acknowledge(self, subscription: Subscription, polling: Polling, message: Message) -> None:
        choice = self._random.random()
        try:
            if choice < 0.1:
                subscription.negative_acknowledge(message)
            elif choice < 0.3:
                covered = polling.upto(message)
                subscription.acknowledge_cumulative(message)
                polling.close(message, cumulative=True)
                self._handled(covered)
            else:
                subscription.acknowledge(message)
                polling.close(message)
                self._handled([(message.value or b"").decode()])
        except AcknowledgementError as error:
            self._telling.tell("refused", why=str(error))

    def _handled(self, values: list[str]) -> None:
        self._done += values
        self._telling.tell("handled", group=self._role.group, values=values)

    async def _commit(self, subscription: Subscription, session: int) -> None:
        """Commits; what was done in the session that still lasts is durable then."""
        try:
            await subscription.commit()
        except FencedError as error:
            self._telling.tell("fenced", why=str(error))
            return
        if subscription.rebalance_count == session:
            self._telling.tell(
                "acknowledged",
                group=self._role.group,
                cluster=self._role.cluster,
                values=self._done,
            )
        self._done = []


async def main() -> None:
    """Reads until SIGTERM."""
    await Member(Role.of(sys.argv[1]), Stop()).run()


if __name__ == "__main__":
    asyncio.run(main())
