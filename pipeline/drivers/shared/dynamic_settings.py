"""Settings that change while workers run: the settings topic, read from its start and then tailed.

*Source*: `schemas.settings`; docs/protocols A7.
*Invariants*: the last value of a name counts, compacted or not; no value is applied before the
topic has been read to its end. An unknown name is passed over with a warning, since a newer version
may have written it. A value that cannot be decoded is passed over, too, since no setting changes
what readers see (B10): the value before stays.
"""

import asyncio
import math
from collections.abc import Callable

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.system_topics import missing_topic, require_topics
from stilltide.pipeline.logging import get_logger
from stilltide.schemas import settings
from stilltide.schemas.errors import DecodeError, ForeignKeyError
from stilltide.schemas.topics import SETTINGS
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

log = get_logger(__name__)


SHOWN = 64
"""Letters that a log line shows of a name that anybody may have written."""

PARTITION = TopicPartition(SETTINGS, 0)


class DynamicSettings:
    """The dynamic settings of one cluster: `open` first, then `run`, `close` last.

    Args:
        connector: the cluster.
        changed: called with this object after every change that `run` finds.
        patience_s: longest absence of the broker before `open` raises; `run` waits.
        passed_over: called with each record that cannot be decoded, and why; None: it is logged.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        changed: Callable[["DynamicSettings"], None] = lambda _settings: None,
        patience_s: float = 60.0,
        passed_over: Callable[[Record, DecodeError], None] | None = None,
    ) -> None:
        self._changed = changed
        self._passed_over = passed_over or _warn
        self._admin = connector.admin()
        self._reader = connector.reader("settings", committed=False)
        self._patience_s = patience_s
        self._follows = False
        self._values: dict[str, settings.SettingValue] = {}
        self._unread: dict[bytes | None, Record] = {}
        self._subscriptions: list[tuple[str, str, bool]] | None = None  # of these values

    def flag(self, name: str) -> bool | None:
        """The value of a switch; None: never set, or reset, so that the static setting counts."""
        value = self._values.get(name)
        assert value is None or isinstance(value, bool), f"{name} is no switch"
        return value

    def subscriptions(self) -> list[tuple[str, str, bool]]:
        """Topics and groups that an operator has set, and whether the group is replicated."""
        if self._subscriptions is None:
            named = ((settings.subscription_of(name), on) for name, on in self._values.items())
            self._subscriptions = [(*of, bool(on)) for of, on in named if of is not None]
        return self._subscriptions

    def forgotten_links(self) -> dict[ClusterName, int]:
        """Retired links, by source, with the time of their last sign of life, in ms since 1970."""
        named = ((settings.forgotten_link_of(name), at) for name, at in self._values.items())
        return {source: int(at) for source, at in named if source is not None}

    async def open(self) -> None:
        """Reads the topic to its end, as of some moment after the call.

        Raises:
            FatalError: the settings topic does not exist.
            UnavailableError: the broker was away for longer than `patience_s`.
        """
        outages = self._guard(self._patience_s)
        starts = await outages.call(lambda: self._admin.start_offsets([PARTITION]))
        if PARTITION not in starts:
            raise missing_topic(SETTINGS)
        await self._reader.assign({PARTITION: Offset(starts[PARTITION])})
        while not await self._read(outages):
            pass
        self._apply()

    async def run(self) -> None:
        """Follows the topic until cancelled; raises as `open` does, but waits for the broker."""
        outages = self._guard(math.inf)
        self._follows = True
        while True:
            await self._read(outages)
            if self._apply():
                self._changed(self)

    async def close(self) -> None:
        """Releases the connections."""
        await self._reader.close()
        await self._admin.close()

    def _guard(self, timeout_s: float) -> OutageGuard:
        return OutageGuard(self._admin, timeout_s=timeout_s)

    async def _read(self, outages: OutageGuard) -> bool:
        """Takes the next records; whether the end of the topic was reached."""
        ended = False
        for item in await outages.call(self._reader.read, may_rest=True):
            if isinstance(item, EndReached):
                ended = True
            else:
                self._unread[item.key] = item
        return ended

    def _apply(self) -> bool:
        """Applies the values that were read; whether there were any."""
        unread, self._unread = self._unread, {}
        for record in unread.values():
            try:
                name, value = settings.decode(record.key, record.value)
                self._put(name, value)
            except DecodeError as error:
                self._passed_over(record, error)
        return bool(unread)

    def _put(self, name: str, value: settings.SettingValue | None) -> None:
        kind, self._subscriptions = settings.kind_of(name), None
        if kind is None:
            raise ForeignKeyError(
                f"no setting has the name {name[:SHOWN]!r}; a newer version may have written it"
            )
        if value is None:
            self._values.pop(name, None)
        elif type(value) is not kind:
            raise DecodeError(f"dynamic setting {name} is {value!r}, which is no {kind.__name__}")
        else:
            self._values[name] = value
        # Commands that look at the settings open them again and again: only a change is news.
        (log.info if self._follows else log.debug)("dynamic_setting", name=name, value=value)


async def write_setting(
    connector: Connector, name: str, value: settings.SettingValue | None, *, at_ms: int
) -> None:
    """Sets `name` for the whole cluster; None restores each worker's static setting.

    Raises:
        FatalError: the settings topic does not exist.
        RetriableError: the broker is away; whether the setting was written is unknown.
    """
    assert settings.kind_of(name), f"{name} is no dynamic setting"
    admin = connector.admin()
    try:
        require_topics([SETTINGS], await admin.describe_topics([SETTINGS]))
    finally:
        await admin.close()
    key, data = settings.encode(name, value, at_ms=at_ms)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def delivered(error: ConnectorError | None, _offset: int) -> None:
        if done.done():
            return  # the caller was cancelled, by Ctrl-C for example
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    writer = connector.writer("settings")
    try:
        writer.append(PARTITION, data, delivered, key=key)
        await done
    finally:
        await writer.close()


def _warn(record: Record, error: DecodeError) -> None:
    log.warning(
        "setting_passed_over",
        partition=record.partition,
        offset=record.offset,
        topic=record.topic,
        why=error.primary,
    )
