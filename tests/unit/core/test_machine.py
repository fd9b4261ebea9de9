"""Every pure machine has the contract of `core.machine`."""

import importlib
import inspect
import pkgutil

import pytest

from stilltide.pipeline import core
from stilltide.pipeline.core.buffered_log.accumulator import Accumulator
from stilltide.pipeline.core.coordinator.machine import Coordinator
from stilltide.pipeline.core.coordinator.pool import TransactionPool
from stilltide.pipeline.core.decisions.resolver import Resolver
from stilltide.pipeline.core.groups.controller import ReplicationController
from stilltide.pipeline.core.groups.position_snapshots import PositionSnapshotBuilder
from stilltide.pipeline.core.links.last_error import LastErrorReport
from stilltide.pipeline.core.links.link import Link
from stilltide.pipeline.core.machine import Machine
from stilltide.pipeline.core.native.indexer import PartitionIndexer
from stilltide.pipeline.core.pending_ack.machine import PendingAckStore
from stilltide.pipeline.core.pending_ack.tracker import Questions, Tracker
from stilltide.pipeline.core.service.direct_line import DirectLine
from stilltide.pipeline.core.service.session import ClientSession
from stilltide.pipeline.core.snapshots.writer import SnapshotWriter

ON_THE_WALL_CLOCK: list[type[Machine[int, object]]] = [
    Coordinator,
    PendingAckStore,
    SnapshotWriter,
    PartitionIndexer,
    Link,
    LastErrorReport,
    ReplicationController,
    PositionSnapshotBuilder,
]
"""The type checker compares the signatures."""

ON_ANY_CLOCK: list[type[Machine[float, object]]] = [
    Accumulator,
    TransactionPool,
    ClientSession,
    DirectLine,
    Tracker,
    Questions,
    Resolver,
]


def ticking() -> set[type]:
    """Every class below core that has `tick`, without the protocol."""
    found: set[type] = set()
    for module in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        for _, one in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if "tick" in vars(one) and one is not Machine:
                found.add(one)
    return found


def test_every_class_that_ticks_is_listed_here():
    """A new machine is compared with the contract too."""
    assert ticking() == {*ON_THE_WALL_CLOCK, *ON_ANY_CLOCK}


@pytest.mark.parametrize("machine", [*ON_THE_WALL_CLOCK, *ON_ANY_CLOCK])
def test_a_machine_has_a_deadline_and_a_tick(machine: type):
    """`deadline_ms` is a property, and `tick` takes the time alone."""
    assert isinstance(vars(machine)["deadline_ms"], property)
    assert list(inspect.signature(vars(machine)["tick"]).parameters) == ["self", "now_ms"]
