"""Containers that cannot work say why, name the setting and the next step, and end."""

from collections.abc import Iterator

import pytest

from tests.support.processes.containers import SPARK_IMAGE, WORKER_IMAGE, kafka_container, run_image

NOWHERE = "127.0.0.1:1"
USER, WRONG, RIGHT = "stilltide", "wrong-one", "right-one"
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{RIGHT}";'

SERVICES = {
    "worker": (WORKER_IMAGE, ["worker"]),
    "link": (WORKER_IMAGE, ["replicate", "--from", "a", "--to", "b", "--web-port", "6066"]),
    "indexer": (WORKER_IMAGE, ["index", "run", "orders", "--web-port", "6066"]),
    "audit": (SPARK_IMAGE, ["audit", "run", "--topics", "orders"]),
}


@pytest.fixture(scope="module")
def secured() -> Iterator[str]:
    """The address of a broker that wants a login."""
    with kafka_container(
        KAFKA_LISTENER_SECURITY_PROTOCOL_MAP="EXTERNAL:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        KAFKA_SASL_ENABLED_MECHANISMS="PLAIN",
        KAFKA_LISTENER_NAME_EXTERNAL_PLAIN_SASL_JAAS_CONFIG=LOGIN,
    ) as bootstrap:
        yield bootstrap


def ended(service: str, address: str, **variables: object) -> str:
    """What a container says on stderr that is started so and ends with exit code 1.

    The link copies to the same broker under another address: two clusters may not share one.
    """
    image, command = SERVICES[service]
    other = address.replace("127.0.0.1", "localhost")
    settings = {
        "BOOTSTRAP_SERVERS": address,
        "CLUSTERS": f"a={address} b={other}",
        "REQUEST_TIMEOUT_S": 5,
        "BROKER_AWAY_S_MAX": 5,
    } | variables
    given = [f"--env=STILLTIDE_{name}={value}" for name, value in settings.items()]
    done = run_image(image, *command, options=("--network", "host", *given))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_a_cluster_that_is_not_there(service: str):
    """The address, the settings that may hold it, and the command that says where from."""
    said = ended(service, NOWHERE)
    for part in (NOWHERE, "bootstrap_servers", "check that", "config show --origin"):
        assert part in said


@pytest.mark.parametrize("service", SERVICES)
def test_a_secret_that_is_wrong(service: str, secured: str):
    """The login failed, which settings to check, and no secret."""
    said = ended(
        service,
        secured,
        SECURITY_PROTOCOL="SASL_PLAINTEXT",
        SASL_MECHANISM="PLAIN",
        SASL_USERNAME=USER,
        SASL_PASSWORD=WRONG,
    )
    for part in (secured, "uthentication failed", "sasl.password", "config show --origin"):
        assert part in said
    assert WRONG not in said


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        (
            {"BOOTSTRAP_SERVER": "kafka:9092"},
            ["STILLTIDE_BOOTSTRAP_SERVER", "did you mean STILLTIDE_BOOTSTRAP_SERVERS"],
        ),
        (
            {"SECURITY_PROTOCOL": "SSL", "SSL_CA_LOCATION": "/run/ca.pem"},
            ["ssl_ca_location", "/run/ca.pem", "STILLTIDE_SSL_CA_LOCATION", "put the PEM file"],
        ),
        (
            {"SASL_PASSWORD_FILE": "/run/secrets/none"},
            ["STILLTIDE_SASL_PASSWORD_FILE", "/run/secrets/none", "put the file there"],
        ),
    ],
    ids=["unknown key", "missing CA", "missing secret"],
)
@pytest.mark.parametrize("service", ["worker", "link"])
def test_settings_that_are_wrong(service: str, variables: dict[str, str], parts: list[str]):
    """Key, origin and next step, before anything is connected to."""
    said = ended(service, NOWHERE, **variables)
    for part in parts:
        assert part in said
