"""TLS and SASL: every client of ours reaches such a broker, and says clearly why it cannot."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.security import java_options
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.main import run
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.native.owner import AbortedIndexing
from stilltide.pipeline.jobs.audits.plan import COORDINATED, AuditPlan
from stilltide.pipeline.jobs.audits.report import Check, Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.topics import TopicSpec
from tests.support.processes.certificates import Authority
from tests.support.processes.local import run_stilltide
from tests.support.processes.oidc import OidcServer
from tests.support.processes.secure import (
    KEY_PASSWORD,
    Secured,
    mutual_tls_listener,
    oauth_listener,
    plain_listener,
    scram_listener,
    tls_listener,
)
from tests.support.processes.worker_process import running_worker
from tests.support.spark.session import local_spark

PATIENCE_S = 60.0


class Secure(NamedTuple):
    """A broker with each kind of listener, and the server of its tokens."""

    cluster: LocalCluster
    server: OidcServer
    scram: Secured
    tls: Secured
    plain: Secured
    mutual: Secured
    oauth: Secured


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """A broker of this module's own."""
    directory = tmp_path_factory.mktemp("secure")
    (directory / "tls").mkdir()
    authority = Authority(directory)
    with OidcServer(directory, authority.issue("issuer")) as server:
        each = (
            scram_listener(),
            tls_listener(directory / "tls"),
            plain_listener(),
            mutual_tls_listener(directory),
            oauth_listener(authority, server),
        )
        listeners = [secured.listener for secured in each]
        with LocalCluster("s", directory / "s", fast_start=True, listeners=listeners) as cluster:
            yield Secure(cluster, server, *each)


def address(secured: Secured) -> str:
    """Of its listener."""
    return secured.listener.bootstrap


def settings_of(secured: Secured, **changed: str) -> Settings:
    """What a process with these settings works by."""
    return load_settings(bootstrap_servers=address(secured), **secured.settings | changed)


async def write_and_read(settings: Settings, topic: str) -> list[bytes | None]:
    """A transaction, its record as a subscription reads it, and the topic's native index."""
    connector = KafkaConnector(settings.kafka)
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic, 1)])
    await admin.close()
    async with TransactionClient(connector=connector) as client, client.transaction() as txn:
        await txn.send(topic, b"through", key=b"k")
    async with Subscription([topic], group=f"g-{topic}", connector=connector) as records:
        read = [(await anext(records)).value]
    indexing = AbortedIndexing(
        connector,
        connector.batch_reader("aborted-index"),
        [topic],
        partition_count=settings.partitions,
        patience_s=PATIENCE_S,
    )
    try:
        await indexing.once()
    finally:
        await indexing.close()
    return read


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("plain", "mutual")]
"""The other kinds have a password and a certificate, too."""


@pytest.mark.parametrize("kind", ["scram", "tls", *SLOW, "oauth"])
def test_every_client_passes(secure: Secure, kind: str, topic_name: str, tmp_path: Path):
    """Worker (Faust), transactions and readers (librdkafka), index (kafka-python), audit (Spark).

    The worker takes what is set from its environment, as everything deployed does.
    """
    secured: Secured = getattr(secure, kind)
    settings = settings_of(secured)
    with running_worker(address(secured), tmp_path / "worker.log", **secured.settings):
        assert asyncio.run(write_and_read(settings, topic_name)) == [b"through"]
    with local_spark():
        report = run_audit(settings.kafka, AuditPlan([topic_name], checks=COORDINATED))
    assert report.verdict is Verdict.VALID
    assert report.result(Check.COUNTS).figures["committed"] >= 1


def failure(secured: Secured, monkeypatch: pytest.MonkeyPatch, **changed: str) -> int:
    """The exit code of a command that reaches the cluster with these settings."""
    for name, value in (secured.settings | changed).items():
        monkeypatch.setenv(f"STILLTIDE_{name.upper()}", value)
    return run(["txn", "list", "--bootstrap-servers", address(secured), "--timeout-s", "5"])


def test_wrong_secret_is_named(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The error is that of the login, not of a broker that seems to be away; no secret in it."""
    monkeypatch.setenv("STILLTIDE_REQUEST_TIMEOUT_S", "5")
    assert failure(secure.scram, monkeypatch, sasl_password="wrong-one") == 1  # noqa: S106 - a wrong one
    said = capsys.readouterr().err
    assert address(secure.scram) in said
    assert "uthentication failed" in said
    assert "sasl.password" in said
    assert "config show --origin" in said
    assert "wrong-one" not in said


def test_certificate_nobody_vouches_for_is_refused(
    secure: Secure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Another CA than the broker's: no connection, and the error speaks of the certificate."""
    other = Path(tls_listener(tmp_path).settings["ssl_ca_location"])
    monkeypatch.setenv("STILLTIDE_REQUEST_TIMEOUT_S", "5")
    assert failure(secure.tls, monkeypatch, ssl_ca_location=str(other)) == 1
    said = capsys.readouterr().err
    assert address(secure.tls) in said
    assert "certificate" in said
    assert "ssl.ca.location" in said


def test_worker_that_may_not_log_in_ends(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """It exits with that error instead of trying for ever."""
    monkeypatch.setenv("STILLTIDE_REQUEST_TIMEOUT_S", "3")
    for name, value in (secure.scram.settings | {"sasl_password": "wrong"}).items():
        monkeypatch.setenv(f"STILLTIDE_{name.upper()}", value)
    servers = ("--bootstrap-servers", address(secure.scram))
    ended = run_stilltide("worker", *servers, "--web-port", "0", cwd=tmp_path)
    assert ended.returncode == 1
    assert "uthentication failed" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_unencrypted_client_is_told_to_set_the_protocol(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Plain bytes to a listener that wants a login: an error with the address, not a hang."""
    monkeypatch.setenv("STILLTIDE_REQUEST_TIMEOUT_S", "3")
    assert run(["txn", "list", "--bootstrap-servers", address(secure.scram)]) == 1
    said = capsys.readouterr().err
    assert f"at {address(secure.scram)}" in said


def test_refused_token_client_is_named(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A wrong secret of the authorization server is an error of the login, without the secret."""
    monkeypatch.setenv("STILLTIDE_REQUEST_TIMEOUT_S", "5")
    wrong = {"sasl_oauthbearer_client_secret": "wrong-one"}
    assert failure(secure.oauth, monkeypatch, **wrong) == 1
    said = capsys.readouterr().err
    assert address(secure.oauth) in said
    assert "sasl.oauthbearer.client.secret" in said
    assert "wrong-one" not in said


def test_client_without_a_certificate_is_refused(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Where the broker asks for one; the error names the address and TLS."""
    monkeypatch.setenv("STILLTIDE_REQUEST_TIMEOUT_S", "5")
    settings = {
        name: value
        for name, value in secure.mutual.settings.items()
        if name not in ("ssl_certificate_location", "ssl_key_location")
    }
    assert failure(secure.mutual._replace(settings=settings), monkeypatch) == 1
    assert address(secure.mutual) in capsys.readouterr().err


async def test_encrypted_key_is_for_all_clients_but_spark(secure: Secure):
    """Librdkafka and kafka-python decrypt it; Spark's refusal says how to encrypt it otherwise."""
    key = Path(secure.mutual.settings["ssl_key_location"])
    given = {
        "ssl_certificate_location": str(key.with_name("encrypted.crt")),
        "ssl_key_location": str(key.with_name("encrypted.key")),
        "ssl_key_password": KEY_PASSWORD,
    }
    connector = KafkaConnector(settings_of(secure.mutual, **given).kafka)
    admin, native = connector.admin(), connector.native_transactions("encrypted")
    try:
        await admin.list_topics()
        await native.list_transactions()
    finally:
        await native.close()
        await admin.close()
    with pytest.raises(FatalError, match="Spark cannot decrypt the key"):
        java_options(settings_of(secure.mutual, **given).kafka.extra)
