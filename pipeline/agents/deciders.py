"""The resolver of a worker: databases decide the prepared transactions that clients left behind.

*Source*: docs/protocols L6.

*Invariants*: the worker that has coordinator 0 resolves; while two workers believe that they have
it, both resolve, which is safe. No error of a database or coordinator ends the worker.
"""

import asyncio
from collections.abc import Callable, Mapping

from stilltide.connectors.errors import ConnectorError, FatalError
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.pipeline.config.deciders import parse_deciders
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import (
    DecisionResolver,
    UnendedTransactions,
    resolvers_of,
)
from stilltide.pipeline.errors import ConfigError, PipelineError
from stilltide.pipeline.extras import require_module
from stilltide.pipeline.logging import get_logger

log = get_logger(__name__)

PAUSE_S = 2.0
"""Pause before the resolver begins again that an error has ended, or that another worker has."""


async def resolve_prepared(
    settings: Settings, connector: Connector, leads: Callable[[], bool]
) -> None:
    """Resolves, while this worker leads, until cancelled; returns at once without deciders.

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
            if leads():
                await _resolve(settings, connector, tables, leads)
            await asyncio.sleep(PAUSE_S)
    finally:
        for table in tables.values():
            await table.close()


async def _resolve(
    settings: Settings,
    connector: Connector,
    tables: Mapping[str, DecisionTable],
    leads: Callable[[], bool],
) -> None:
    """Resolves while this worker leads, or until an error, which is logged."""
    asking = Coordinators(connector, request_timeout_s=settings.request_timeout_s)
    try:
        async with closing(connector.admin()) as admin, asking as coordinators:
            unended = UnendedTransactions(
                coordinators, await admin.cluster_id(), tables, connector.clock
            )
            after_ms = settings.resolve_after_ms
            async with asyncio.TaskGroup() as group:
                for resolver in resolvers_of(unended, tables, resolve_after_ms=after_ms):
                    group.create_task(_rounds(resolver, leads))
    except* (ConnectorError, PipelineError) as failures:
        log.warning("resolver_failed", why="; ".join(map(str, failures.exceptions)))


async def _rounds(resolver: DecisionResolver, leads: Callable[[], bool]) -> None:
    """Resolves what one database decides while this worker leads."""
    async for resolved in resolver.rounds():
        for txn, decider, committed in resolved:
            log.info(
                "prepared_resolved", transaction=str(txn), decider=decider, committed=committed
            )
        if not leads():
            return
