"""What operators do while clients run, and what retention and the cleaner of brokers do."""

import asyncio
from collections.abc import Callable

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.log import Log
from stilltide.pipeline.drivers.coordinator.growth import grow_coordinators
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.shared.dynamic_settings import write_setting
from stilltide.schemas.coordinator.transactions import Abort
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.simulation.history import History, Place
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.plan import Act, Other
from tests.simulation.processes.process import EVERYWHERE
from tests.simulation.workload.errands import Errands

REQUEST_S = 5.0
"""How long an operator waits for an answer."""

ABSENCE_S = 0.5
"""Time between two looks whether the absence of a topic can be seen."""


class Operators:
    """Commands of an operator, one after the other.

    Args:
        other: the program and its acts.
        history: the history of the world; what retention deletes is written there.
        broker: the cluster itself, for what brokers do by themselves.
        grow: returns with how many coordinators workers start from now on: one more.
    """

    def __init__(
        self, other: Other, history: History, broker: MemoryBroker, grow: Callable[[], int]
    ) -> None:
        self._errands = Errands(other)
        self._history = history
        self._broker = broker
        self._grow = grow

    async def run(self, connector: NetworkConnector) -> None:
        """Does what no earlier process has begun."""
        await self._errands.run(lambda act: self._do(act, connector))

    async def _do(self, act: Act, connector: NetworkConnector) -> None:
        match act.kind:
            case "abort":
                await self._abort(act, connector)
            case "retain":
                await self._retain(act, connector)
            case "clean":
                self._clean()
            case "batching":
                name = "txn_log_batching_enabled"
                value = (True, False, None)[act.number % 3]
                await write_setting(connector, name, value, at_ms=connector.clock.now_ms())
            case "coordinators":
                await grow_coordinators(connector.admin(), self._grow())
            case "partitions":
                ((topic, partition),) = act.writes
                await connector.admin().add_partitions(topic, partition + 1)
            case "recreate":
                self._recreate(act, connector.cluster)

    @staticmethod
    async def _abort(act: Act, connector: NetworkConnector) -> None:
        """Aborts a transaction that is open."""
        async with Coordinators(connector, request_timeout_s=REQUEST_S) as coordinators:
            coordinator = act.number % coordinators.count
            found = await coordinators.transactions(coordinator)
            open_ones = [it.sequence for it in found if it.state == "OPEN"]
            if open_ones:
                await coordinators.ask(coordinator, Abort(open_ones[act.number % len(open_ones)]))

    async def _retain(self, act: Act, connector: NetworkConnector) -> None:
        """Deletes records that every group has passed."""
        ((topic, partition),) = act.writes
        data = TopicPartition(topic, partition)
        commits = [it.committed.get(data) for it in self._broker.groups.values()]
        passed = [it.offset for it in commits if it is not None]
        log = self._broker.log(data)
        if not passed or log is None:
            return
        before = Offset(min(passed))
        place = Place(connector.cluster, *data)
        for record in log.records:
            if record.offset < before:
                self._history.deleted.setdefault(record.value or b"", {})[place] = record.offset
        await connector.admin().delete_records({data: before})

    def _recreate(self, act: Act, cluster: str) -> None:
        """Deletes a topic; it is made again later, also if the operator has died meanwhile.

        Until then the brokers can be asked for as long as the act says: all members notice.
        """
        ((topic, _),) = act.writes
        logs, history = self._broker.topics[topic].logs, self._history
        for log in logs:
            former = Place(cluster, *log.data)
            gone = former._replace(topic=f"{topic} until {act.number}")
            history.gone |= {it.value or b"": (gone, it.offset) for it in log.records}
            history.gone |= {
                value: (gone, places[former])
                for value, places in history.deleted.items()
                if former in places
            }
        self._broker.delete_topic(topic)
        self._create_after(act.for_s, act.for_s, TopicSpec(topic, len(logs)))

    def _create_after(self, left_s: float, for_s: float, spec: TopicSpec) -> None:
        if self._broker.is_down:
            left_s = for_s
        if left_s > 0:
            step_s, loop = min(left_s, ABSENCE_S), asyncio.get_running_loop()
            rest = (left_s - step_s, for_s, spec)
            loop.call_later(step_s, self._create_after, *rest, context=EVERYWHERE)
            return
        self._broker.create_topic(spec)
        self._broker.watchers.notify()

    def _clean(self) -> None:
        """Has the cleaner pass through every topic that compacts; tombstones stay for an hour."""
        for topic in self._broker.topics.values():
            if "compact" in topic.configs["cleanup.policy"]:
                for log in topic.logs:
                    _clean_log(log)


def _clean_log(log: Log) -> None:
    end = log.stable_end
    decided = [it for it in log.records if it.offset < end and it.offset not in log.aborted]
    last = {it.key: it.offset for it in decided}
    log.records = [
        it
        for it in log.records
        if it.offset >= end or (it.offset not in log.aborted and last[it.key] == it.offset)
    ]
