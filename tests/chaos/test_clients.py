"""Clients whose only broker is there and not there."""

import asyncio
import contextlib
import os
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.admin.admin import KafkaAdmin
from stilltide.connectors.kafka.config import (
    KafkaConfig,
    admin_options,
    producer_options,
    reader_options,
)
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.consumer.reader import KafkaReader
from stilltide.connectors.ports.readers import Fetching, Record
from stilltide.connectors.ports.writers import LogWriter
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.processes.wavering_broker import TOPIC, WaveringBroker

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))

EACH = 10
MANY = 20
REQUESTS = 300
WAVERS_S = 5
COMES_BACK_S = 60

Client = Consumer | Producer | AdminClient


def _clients(bootstrap: str) -> dict[str, Client]:
    """Readers, writers and admins by client id; each has something to ask for."""
    config = KafkaConfig(bootstrap)
    often = {"topic.metadata.refresh.interval.ms": 300, "log_level": 0}
    clients: dict[str, Client] = {}
    for number in range(EACH):
        name = f"reader-{number}"
        reader = Consumer({**reader_options(config, name, committed=False), **often})
        reader.assign([ClientPartition(TOPIC, 0, 0)])
        clients[name] = reader
        name = f"writer-{number}"
        writer = Producer({**producer_options(config, name, 0), **often})
        writer.produce(TOPIC, b"v")
        clients[name] = writer
        name = f"admin-{number}"
        clients[name] = AdminClient({**admin_options(config), **often, "client.id": name})
    return clients


async def _poll(clients: dict[str, Client]) -> None:
    """Has each do what it does when it is polled; the broker needs the loop meanwhile."""
    for client in clients.values():
        await asyncio.to_thread(client.poll, 0.002)


@pytest.mark.xfail(
    reason="librdkafka's issues 5301 and 5511: docs/internals/kafka-clients.md", strict=True
)
@pytest.mark.timeout(ROUNDS * 10 * WAVERS_S * 2 + COMES_BACK_S + 60)
async def test_every_client_looks_for_its_broker_again():
    """An answer without brokers leaves no client offline."""
    async with WaveringBroker(SEED) as broker:
        clients = _clients(broker.bootstrap)
        for _ in range(ROUNDS * 10):
            broker.wavers = True
            until_s = time.monotonic() + WAVERS_S
            while time.monotonic() < until_s:
                await _poll(clients)
            broker.wavers = False
            broker.heard.clear()
            until_s = time.monotonic() + COMES_BACK_S
            while (silent := clients.keys() - broker.heard) and time.monotonic() < until_s:
                await _poll(clients)
            assert not silent


async def _read(reader: KafkaReader[Record]) -> None:
    while True:
        with contextlib.suppress(RetriableError):
            await reader.read()


@pytest.mark.timeout(ROUNDS * 10 * (WAVERS_S + COMES_BACK_S) + 60)
async def test_every_reader_finds_its_broker_again():
    """Ours notice that their client has gone offline, and read on with another."""
    often = {"topic.metadata.refresh.interval.ms": "300", "log_level": "0"}
    async with WaveringBroker(SEED) as broker:
        connector = KafkaConnector(KafkaConfig(broker.bootstrap, often, fetch_timeout_s=WAVERS_S))
        readers = {  # such as share no client
            name: connector.reader(name, fetching=Fetching.SCANNING)
            for name in (f"reader-{number}" for number in range(MANY))
        }
        async with asyncio.TaskGroup() as reading:
            tasks = [reading.create_task(_read(it)) for it in readers.values()]
            for reader in readers.values():
                await reader.assign({TopicPartition(TOPIC, 0): Offset(0)})
            for _ in range(ROUNDS * 10):
                broker.wavers = True
                await broker.asked(REQUESTS, COMES_BACK_S)
                broker.wavers = False
                await broker.heard_of(readers, COMES_BACK_S)
            for task in tasks:
                task.cancel()
        for reader in readers.values():
            await reader.close()


@pytest.mark.timeout(ROUNDS * 10 * (WAVERS_S + COMES_BACK_S) + 60)
async def test_every_admin_finds_its_broker_again():
    """Ours ask with another client after one that gave no answer."""
    often = {"topic.metadata.refresh.interval.ms": "300", "log_level": "0"}
    async with WaveringBroker(SEED) as broker:
        connector = KafkaConnector(KafkaConfig(broker.bootstrap, often, request_timeout_s=2))
        admins = [connector.admin() for _ in range(MANY)]
        await asyncio.gather(*map(_ask, admins))
        for _ in range(ROUNDS * 10):
            broker.wavers = True
            with contextlib.suppress(TimeoutError):  # clients that have gone offline ask no more
                await broker.asked(REQUESTS, WAVERS_S)
            broker.wavers = False
            async with asyncio.timeout(COMES_BACK_S):
                await asyncio.gather(*map(_ask, admins))
        for admin in admins:
            await admin.close()


async def _append(writer: LogWriter) -> None:
    """One record after the other; this broker takes none, so each is reported as failed."""
    while True:
        writer.append(TopicPartition(TOPIC, 0), b"v", lambda _error, _offset: None)
        await writer.flush(COMES_BACK_S)


@pytest.mark.timeout(ROUNDS * 10 * (WAVERS_S + COMES_BACK_S) + 60)
async def test_every_writer_finds_its_broker_again():
    """Ours notice that their client has gone offline, and write on with another."""
    often = {"topic.metadata.refresh.interval.ms": "300", "log_level": "0"}
    async with WaveringBroker(SEED) as broker:
        connector = KafkaConnector(
            KafkaConfig(broker.bootstrap, often, request_timeout_s=2, delivery_timeout_s=2)
        )
        names = [f"writer-{number}" for number in range(MANY)]
        writers = [connector.writer(name) for name in names]
        async with asyncio.TaskGroup() as writing:
            tasks = [writing.create_task(_append(it)) for it in writers]
            for _ in range(ROUNDS * 10):
                broker.wavers = True
                await broker.asked(REQUESTS, COMES_BACK_S)
                broker.wavers = False
                await broker.heard_of(names, COMES_BACK_S)
            for task in tasks:
                task.cancel()
        for writer in writers:
            await writer.close(0)


async def _ask(admin: KafkaAdmin) -> None:
    while True:
        with contextlib.suppress(RetriableError):
            assert await admin.list_topics() == [TOPIC]
            return
