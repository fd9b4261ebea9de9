"""An application that any version runs: prints what each of its steps has led to, as JSON.

Arguments: address of a cluster, and a name that begins those of its topics and groups.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

from stilltide import Subscription, TransactionClient
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.errors import StilltideError
from stilltide.schemas.topics import TopicSpec

STEP_S = 120
RECORDS = 4


class User:
    """The steps.

    Args:
        client: writes.
        name: begins the names of topics and groups.
    """

    def __init__(self, client: TransactionClient, connector: KafkaConnector, name: str) -> None:
        self._client = client
        self._connector = connector
        self._orders, self._name = f"{name}-orders", name

    async def run(self) -> dict[str, Any]:
        """What became of each step."""
        steps: dict[str, Awaitable[Any]] = {
            "transactions": self.transactions(),
            "outcome": self.outcome(),
            "read": self.read(),
            "acknowledge": self.acknowledge(),
            "dead letter": self.dead_letter(),
            "compacted": self.compacted(),
        }
        found: dict[str, Any] = {}
        for name, step in steps.items():
            try:
                async with asyncio.timeout(STEP_S):
                    found[name] = await step
            except StilltideError as error:
                found[name] = str(error)
        return found

    async def transactions(self) -> str:
        """One that commits, one that aborts."""
        async with self._client.transaction() as txn:
            for number in range(RECORDS):
                await txn.send(self._orders, b"%d" % number, partition=0)
        async with self._client.transaction() as txn:
            await txn.send(self._orders, b"aborted", partition=0)
            await txn.flush()
            await txn.abort()
        return "done"

    async def outcome(self) -> str:
        """Of a transaction that was waited for."""
        async with self._client.transaction() as txn:
            await txn.send(self._orders, b"%d" % RECORDS, partition=0)
            await txn.commit(wait_visible=True)
        assert txn.id is not None
        return str(await self._client.outcome(txn.id))

    async def read(self) -> list[str]:
        """What a group reads and commits."""
        async with self._read_by("readers") as orders:
            found = [await anext(orders) for _ in range(RECORDS + 1)]
            await orders.commit()
        return [(it.value or b"").decode() for it in found]

    async def acknowledge(self) -> list[Any]:
        """Messages that are acknowledged in transactions; one comes again after an abort."""
        found: list[Any] = []
        async with self._read_by("acks", acknowledgements=True) as orders:
            for _ in range(RECORDS):
                message = await anext(orders)
                async with self._client.transaction() as txn:
                    await txn.send(f"{self._name}-out", message.value, partition=0)
                    await txn.acknowledge(orders, message)
                found.append((message.value or b"").decode())
            message = await anext(orders)
            async with self._client.transaction() as txn:
                await txn.acknowledge(orders, message)
                await txn.abort()
            again = await anext(orders)
        return [*found, (again.value or b"").decode(), again.deliveries]

    async def dead_letter(self) -> str:
        """The dead letter of a message that has failed once."""
        options: dict[str, Any] = {"acknowledgements": True, "deliveries_max": 1}
        dead = Subscription(
            f"{self._orders}-{self._name}-dead-DLQ",
            group=f"{self._name}-look",
            connector=self._connector,
        )
        async with self._read_by("dead", redelivery_delay_s=0.1, **options) as orders, dead:
            orders.negative_acknowledge(await anext(orders), "bad")
            return ((await anext(dead)).value or b"").decode()

    async def compacted(self) -> str:
        """A transaction that writes to a topic that compacts."""
        async with self._client.transaction() as txn:
            await txn.send(f"{self._name}-compact", b"1", key=b"k", partition=0)
        return "done"

    def _read_by(self, group: str, **options: Any) -> Subscription:
        name = f"{self._name}-{group}"
        return Subscription(self._orders, group=name, connector=self._connector, **options)


async def run(bootstrap: str, name: str) -> None:
    """Makes the topics, runs the steps and prints what became of them."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    plain = (f"{name}-orders", f"{name}-out", f"{name}-orders-{name}-dead-DLQ")
    compacted = TopicSpec(f"{name}-compact", 1, {"cleanup.policy": "compact"})
    await admin.ensure_topics([*(TopicSpec(it, 1) for it in plain), compacted])
    await admin.close()
    async with TransactionClient(connector=connector, name=name) as client:
        sys.stdout.write(json.dumps(await User(client, connector, name).run()))


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
