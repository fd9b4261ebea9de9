"""A process that gives texts to everything that reaches the Kafka client library.

    python -m tests.support.client_library.given_texts BOOTSTRAP

Prints what became of each text, as JSON. An assertion of the library ends the process by a signal;
the last line of stderr then names the text and where it was given.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

BAD = {
    "empty": "",
    "blank": " ",
    "NUL": "a\x00b",
    "line break": "a\nb",
    "control": "a\x1bb",
    "c1": "a\x85b",
    "half of a character": "a\udcff",
    "other half": "\ud800",
    "spaces": " a ",
    "too long": "x" * 40_000,
    "far too long": "é" * 300_000,
}
"""Texts that no name, id or group may be."""

FINE = {"letters": "größe/π 7", "longest": "x" * 32_000, "percent": "%s%n{0}", "quote": "'\"\\"}
"""Unusual texts that are names of groups and clients."""

NO_TOPICS = {**BAD, **FINE, "dots": "..", "pattern of the client": "^.*", "over 249": "x" * 250}
"""Texts that no topic may be named."""

TIMEOUT_S = 5.0


def _nothing(*_: object) -> None:
    """Takes assignments and reports."""


class Rim:
    """The calls that give a text to the client library, by what the text is."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.connector = KafkaConnector(KafkaConfig(bootstrap, request_timeout_s=TIMEOUT_S))
        self.admin = self.connector.admin()
        self.topics = self.connector.topic_admin()

    async def group(self, text: str) -> None:
        """A member of a group, by the connector."""
        reader = self.connector.group_reader("client", text)
        try:
            await reader.subscribe(["topic"], assigned=_nothing, revoked=_nothing)
        finally:
            await reader.close()

    async def group_of_a_subscription(self, text: str) -> None:
        """A member of a group, as applications make it."""
        Subscription(["topic"], group=text, bootstrap_servers=self.bootstrap)

    async def client_id(self, text: str) -> None:
        """The client id of a writer and of readers."""
        writer = self.connector.writer(text)
        await writer.close(timeout_s=0)
        reader = self.connector.reader(text)
        await reader.assign({})
        await reader.close()

    async def name_of_a_client(self, text: str) -> None:
        """The name of a client of transactions."""
        TransactionClient(self.bootstrap, name=text)

    async def transactional_id(self, text: str) -> None:
        """The id of writers of native transactions."""
        for writer in (self.connector.transactional_writer(text), self.connector.copy_writer(text)):
            try:
                await writer.fence()
            finally:
                await writer.close()

    async def option_name(self, text: str) -> None:
        """The name of an option."""
        KafkaConfig(self.bootstrap, extra={text: "1"})

    async def assigned_topic(self, text: str) -> None:
        """A partition that is read."""
        reader = self.connector.reader("reader")
        try:
            await reader.assign({TopicPartition(text, 0): Offset(0)})
        finally:
            await reader.close()

    async def assigned_column(self, text: str) -> None:
        """A partition that is copied."""
        reader = self.connector.column_reader("reader")
        try:
            await reader.assign({TopicPartition(text, 0): Offset(0)})
        finally:
            await reader.close()

    async def subscribed_topic(self, text: str) -> None:
        """A topic of a group's member."""
        reader = self.connector.group_reader("client", "group")
        try:
            await reader.subscribe([text], assigned=_nothing, revoked=_nothing)
        finally:
            await reader.close()

    async def topic_of_a_subscription(self, text: str) -> None:
        """A topic of a subscription."""
        Subscription([text], group="group", bootstrap_servers=self.bootstrap)

    async def new_topic(self, text: str) -> None:
        """A topic that is created."""
        await self.admin.ensure_topics([TopicSpec(text, 1)])

    async def grown_topic(self, text: str) -> None:
        """A topic that gains partitions."""
        await self.admin.add_partitions(text, 2)

    async def trimmed_topic(self, text: str) -> None:
        """A partition whose records are deleted."""
        await self.admin.delete_records({TopicPartition(text, 0): Offset(0)})

    async def altered_topic(self, text: str) -> None:
        """A topic whose configs are set."""
        await self.topics.alter_configs({text: {"retention.ms": "1"}})

    async def config_name(self, text: str) -> None:
        """The name of a config of a topic."""
        await self.admin.ensure_topics([TopicSpec("topic", 1, {text: "1"})])
        await self.topics.alter_configs({"topic": {text: "1"}})

    async def described_topic(self, text: str) -> None:
        """Questions about a topic: one that cannot exist is missing."""
        data = TopicPartition(text, 0)
        found: list[Any] = [
            await self.admin.describe_topics([text]),
            await self.admin.topic_configs([text]),
            await self.admin.topic_overrides([text]),
            await self.admin.end_offsets([data]),
            await self.admin.start_offsets([data]),
            await self.admin.start_offsets([data], since_ms=1),
            await self.topics.placements([text]),
        ]
        assert not any(found)


NAMES = (
    "group",
    "group_of_a_subscription",
    "client_id",
    "name_of_a_client",
    "transactional_id",
)
TOPICS = (
    "assigned_topic",
    "assigned_column",
    "subscribed_topic",
    "topic_of_a_subscription",
    "new_topic",
    "grown_topic",
    "trimmed_topic",
    "altered_topic",
)
KEYS = ("option_name", "config_name")


def calls(rim: Rim) -> Iterator[tuple[str, str, Callable[[], Awaitable[None]]]]:
    """What is given, which text, and the call."""
    texts = {kind: {**BAD, **FINE} for kind in NAMES} | dict.fromkeys(KEYS, BAD)
    texts |= dict.fromkeys((*TOPICS, "described_topic"), NO_TOPICS)
    for kind, given in texts.items():
        for name, text in given.items():
            yield kind, name, lambda kind=kind, text=text: getattr(rim, kind)(text)


@contextmanager
def _named(kind: str, name: str) -> Iterator[None]:
    sys.stderr.write(f"{kind}: {name}\n")
    sys.stderr.flush()
    yield


async def main(bootstrap: str) -> None:
    """Gives all texts."""
    rim = Rim(bootstrap)
    outcomes: dict[str, dict[str, str]] = {}
    for kind, name, call in calls(rim):
        with _named(kind, name):
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - reported
                outcome = type(error).__name__
            else:
                outcome = "passed"
        outcomes.setdefault(kind, {})[name] = outcome
    await rim.admin.close()
    await rim.topics.close()
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
