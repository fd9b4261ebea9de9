"""The resolver of a worker: databases decide the prepared transactions that clients left behind.

*Source*: docs/protocols L6.

*Invariants*: each worker resolves what its own coordinators list; while two workers believe that
they own one, both resolve, which is safe. No error of a database or coordinator ends the worker.
With nothing prepared nobody is asked but once in `REST_MS`: the coordinators are in this process,
and say for nothing whether something is.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from stilltide.connectors.errors import ConnectorError, FatalError
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.pipeline.config.deciders import parse_deciders
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.coordinator.owner import CoordinatorOwner
from stilltide.pipeline.drivers.decisions.resolver import (
    DecisionResolver,
    UnendedTransactions,
    resolvers_of,
)
from stilltide.pipeline.errors import ConfigError, PipelineError
from stilltide.pipeline.extras import require_module
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.decisions import parse_decider

log = get_logger(__name__)

PAUSE_S = 2.0
"""Pause before resolvers begin again that an error has ended."""

LOOK_S = 1.0
"""Seconds between two looks at the coordinators of this worker."""

REST_MS = 60_000
"""Pause between two rounds while nothing is prepared; a round deletes the rows that are left."""


async def resolve_prepared(
    settings: Settings, connector: Connector, owners: Mapping[int, CoordinatorOwner]
) -> None:
    """Resolves until cancelled; returns at once without deciders.

    Args:
        settings: of the worker.
        connector: the cluster.
        owners: the worker's coordinators, as of now.

    Raises:
        ConfigError: an address in `deciders` cannot be used.
        MissingExtraError: the extra `databases` is not installed.
    """
    if settings.deciders is None:
        return
    addresses = parse_deciders(settings.deciders.get_secret_value())
    require_module("the setting `deciders`", "sqlalchemy")
    from stilltide.connectors.databases.table import (  # noqa: PLC0415 - of an extra
        DatabaseTable,
    )

    try:
        tables = {name: DatabaseTable(name, address) for name, address in addresses.items()}
    except FatalError as error:
        raise ConfigError(error.primary, detail=error.detail, hint=error.hint) from error
    try:
        while True:
            await _resolve(settings, connector, tables, owners)
            await asyncio.sleep(PAUSE_S)
    finally:
        for table in tables.values():
            await table.close()


async def _resolve(
    settings: Settings,
    connector: Connector,
    tables: Mapping[str, DecisionTable],
    owners: Mapping[int, CoordinatorOwner],
) -> None:
    """Resolves until an error, which is logged."""
    asking = Coordinators(connector, request_timeout_s=settings.request_timeout_s)
    try:
        async with closing(connector.admin()) as admin, asking as coordinators:
            unended = UnendedTransactions(
                coordinators, await admin.cluster_id(), tables, connector.clock, own=owners.keys()
            )
            after_ms = settings.resolve_after_ms
            resolvers = resolvers_of(unended, tables, resolve_after_ms=after_ms, rest_ms=REST_MS)
            async with asyncio.TaskGroup() as group:
                for resolver in resolvers:
                    group.create_task(_tell(resolver))
                await _wake(resolvers, owners)
    except* (ConnectorError, PipelineError) as failures:
        log.warning("resolver_failed", why="; ".join(map(str, failures.exceptions)))


async def _tell(resolver: DecisionResolver) -> None:
    async with aclosing(resolver.rounds()) as rounds:
        async for resolved in rounds:
            for txn, decider, committed in resolved:
                log.info(
                    "prepared_resolved", transaction=str(txn), decider=decider, committed=committed
                )


async def _wake(
    resolvers: Sequence[DecisionResolver], owners: Mapping[int, CoordinatorOwner]
) -> None:
    """Wakes resolvers while their database has something to decide, until cancelled.

    A database that no setting names wakes all once, so that the log is told.
    """
    before: set[str] = set()
    while True:
        deciders = set[str]().union(*(owner.deciders for owner in owners.values()))
        names = {parse_decider(decider).name for decider in deciders}
        for resolver in resolvers:
            if resolver.decider in names or names - before:
                resolver.wake()
        before = names
        await asyncio.sleep(LOOK_S)
