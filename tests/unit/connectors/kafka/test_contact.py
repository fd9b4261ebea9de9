"""The first contact to a cluster: somebody listens, or one error says why not."""

import asyncio
import pickle
import socket
from collections.abc import Iterator

import pytest

from stilltide.connectors.errors import InvalidTextError, NoBrokerError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.contact import Contact


@pytest.fixture
def listening() -> Iterator[str]:
    """An address where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def test_one_broker_that_listens_is_enough(listening: str, refusing: str):
    """The others are not waited for, and nothing is asked again."""
    config = KafkaConfig(f"{refusing}, {listening}")
    await config.reach()
    assert config.contact.made


async def test_the_error_names_the_addresses_and_reasons(refusing: str):
    """In one error, whose cause is in its detail."""
    servers = f"{refusing},no-such-host.invalid:9092"
    with pytest.raises(NoBrokerError, match=f"^no broker answers at {servers}") as caught:
        await KafkaConfig(servers).reach()
    assert f"{refusing}: Connection refused" in caught.value.detail
    assert "no-such-host.invalid:9092: " in caught.value.detail
    assert caught.value.__cause__ is None
    assert len(str(caught.value).splitlines()) == 3


async def test_a_broker_that_is_starting_is_waited_for():
    """For a moment: its port opens some time after its process has begun."""
    with socket.socket() as starting:
        starting.bind(("127.0.0.1", 0))
        config = KafkaConfig(f"127.0.0.1:{starting.getsockname()[1]}")
        reaching = asyncio.create_task(config.reach())
        done, _ = await asyncio.wait([reaching], timeout=0.1)
        assert not done
        starting.listen()
        await reaching


async def test_a_contact_that_was_made_is_not_asked_for_again(listening: str, refusing: str):
    """A cluster that is away later is waited for (B9), by all clients of the config."""
    contact = Contact()
    await contact.make(listening, 1.0)
    await contact.make(refusing, 1.0)


async def test_a_config_that_travels_asks_again(listening: str):
    """Executors of Spark are other machines."""
    config = KafkaConfig(listening)
    await config.reach()
    assert not pickle.loads(pickle.dumps(config)).contact.made  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("servers", "example"),
    [
        ("kafka://host:9092", "host:9092"),
        ("PLAINTEXT://host:9092", "host:9092"),
        ("host", "127.0.0.1:9092"),
        ("host:", "127.0.0.1:9092"),
        ("host:0", "127.0.0.1:9092"),
        ("host:70000", "127.0.0.1:9092"),
        ("host:9092,", "127.0.0.1:9092"),
        ("user@host:9092", "127.0.0.1:9092"),
    ],
)
def test_an_address_of_another_form_is_refused_before_anything_is_asked(servers: str, example: str):
    """The hint shows the form, from what was given where that is possible."""
    with pytest.raises(InvalidTextError, match="is not host:port") as caught:
        KafkaConfig(servers)
    assert repr(example) in caught.value.hint


@pytest.mark.parametrize("servers", ["h:1", " h:1 , i:2 ", "[::1]:9092", "a.b-c_d:65535"])
def test_addresses_are_taken_as_they_are(servers: str):
    """With spaces around the commas, too."""
    assert KafkaConfig(servers).bootstrap_servers == servers
