"""Looks at the brokers of a cluster: how many are up, again and again, and how many there are.

*Invariants*: whether brokers are up is asked each time, by one small request; how many the cluster
knows costs a connection, and is asked every `rest_s`.
"""

import asyncio

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.core.status.values import BrokersStatus


class BrokersLook:
    """The brokers of a cluster.

    Args:
        admin: admin client of the cluster, with short time-outs; the look closes it.
        rest_s: seconds between two questions for the brokers that the cluster knows.
    """

    def __init__(self, admin: LogAdmin, rest_s: float) -> None:
        self._admin = admin
        self._rest_s = rest_s
        self._registered = 0
        self._due_s = 0.0

    async def read(self) -> BrokersStatus:
        """The brokers now.

        Raises:
            ConnectorError: no broker answers.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._due_s:
            found = await self._admin.broker_figures(up_only=True)
        else:
            found = await self._admin.broker_figures()
            self._registered, self._due_s = found.registered, loop.time() + self._rest_s
        return BrokersStatus(found.brokers, self._registered)

    async def close(self) -> None:
        """Releases the admin client."""
        await self._admin.close()
