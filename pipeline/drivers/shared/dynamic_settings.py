"""Settings that change while workers run: the settings topic, read from its start and then tailed.

*Source*: `schemas.settings`; docs/protocols A7.
*Invariants*: the last value of a name counts, compacted or not; no value is applied before the
topic has been read to its end. An unknown name is passed over with a warning, since a newer version
may have written it. A value that cannot be decoded is passed over, too, since no setting changes
what readers see (B10): the value before stays.
"""

import math
from collections.abc import AsyncGenerator, ItemsView

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Record
from stilltide.connectors.ports.writers import append
from stilltide.pipeline.drivers.shared.feed import LastValues, TopicFeed
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.logging import get_logger
from stilltide.schemas import settings
from stilltide.schemas.errors import DecodeError, ForeignKeyError
from stilltide.schemas.topics import SETTINGS
from stilltide.schemas.values import ClusterName, TopicPartition

log = get_logger(__name__)


SHOWN = 64
"""Letters that a log line shows of a name that anybody may have written."""

PARTITION = TopicPartition(SETTINGS, 0)


class DynamicSettings:
    """The dynamic settings of one cluster: `open` first, then `changes`, `close` last.

    Args:
        connector: the cluster.
        patience_s: longest absence of the broker before `open` raises; `changes` waits.
    """

    def __init__(self, connector: Connector, *, patience_s: float = 60.0) -> None:
        self._admin = connector.admin()
        self._patience_s = patience_s
        self._feed = TopicFeed(
            connector, self._admin, "settings", [PARTITION], _decode, replaceable=True
        )
        self._table = LastValues(self._feed)
        self._subscriptions: list[tuple[str, str, bool]] | None = None  # of these values

    def flag(self, name: str) -> bool | None:
        """The value of a switch; None: never set, or reset, so that the static setting counts."""
        value = self._table.values.get(name)
        assert value is None or isinstance(value, bool), f"{name} is no switch"
        return value

    def subscriptions(self) -> list[tuple[str, str, bool]]:
        """Topics and groups that an operator has set, and whether the group is replicated."""
        if self._subscriptions is None:
            named = ((settings.subscription_of(name), on) for name, on in self._values())
            self._subscriptions = [(*of, bool(on)) for of, on in named if of is not None]
        return self._subscriptions

    def forgotten_links(self) -> dict[ClusterName, int]:
        """Retired links, by source, with the time of their last sign of life, in ms since 1970."""
        named = ((settings.forgotten_link_of(name), at) for name, at in self._values())
        return {source: int(at) for source, at in named if source is not None}

    async def open(self) -> None:
        """Reads the topic to its end, as of some moment after the call.

        Raises:
            FatalError: the settings topic does not exist.
            UnavailableError: the broker was away for longer than `patience_s`.
        """
        self._feed.outages = self._guard(self._patience_s)
        await self._table.to_now()
        self._subscriptions = None

    async def changes(self) -> AsyncGenerator[None, None]:
        """Comes after every change, until cancelled; raises as `open`, but waits for the broker."""
        self._feed.outages = self._guard(math.inf)
        async for changed in self._table.follow():
            self._subscriptions = None
            for name, value in changed:
                log.info("dynamic_setting", name=name, value=value)
            yield

    async def close(self) -> None:
        """Releases the connections."""
        await self._feed.close()
        await self._admin.close()

    def _values(self) -> ItemsView[str, settings.SettingValue]:
        return self._table.values.items()

    def _guard(self, timeout_s: float) -> OutageGuard:
        return OutageGuard(self._admin, timeout_s=timeout_s)


async def settings_now(connector: Connector, *, patience_s: float) -> DynamicSettings:
    """The settings of a cluster as of now; none where no worker has ever run.

    Raises:
        UnavailableError: the cluster was away for longer than `patience_s`.
    """
    settings_read = DynamicSettings(connector, patience_s=patience_s)
    async with closing(settings_read):
        try:
            await settings_read.open()
        except FatalError as error:
            if error.topic != SETTINGS:
                raise
    return settings_read


def _decode(record: Record) -> tuple[str, settings.SettingValue | None]:
    """A setting that this version knows, with a value of its kind."""
    name, value = settings.decode(record.key, record.value)
    kind = settings.kind_of(name)
    if kind is None:
        raise ForeignKeyError(
            f"no setting has the name {name[:SHOWN]!r}; a newer version may have written it"
        )
    if value is not None and type(value) is not kind:
        raise DecodeError(f"dynamic setting {name} is {value!r}, which is no {kind.__name__}")
    return name, value


async def write_setting(
    connector: Connector, name: str, value: settings.SettingValue | None, *, at_ms: int
) -> None:
    """Sets `name` for the whole cluster; None restores each worker's static setting.

    Raises:
        FatalError: the settings topic does not exist.
        RetriableError: the broker is away; whether the setting was written is unknown.
    """
    assert settings.kind_of(name), f"{name} is no dynamic setting"
    async with closing(connector.admin()) as admin:
        require_topics([SETTINGS], await admin.describe_topics([SETTINGS]))
    key, data = settings.encode(name, value, at_ms=at_ms)
    async with closing(connector.writer("settings")) as writer:
        await append(writer, PARTITION, data, key=key)
