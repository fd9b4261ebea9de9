"""Translates TLS and SASL options from librdkafka's names to those of the other Kafka clients.

*Source*: librdkafka's CONFIGURATION.md; docs/internals/kafka-clients.md.

Refuses an option that one of the clients lacks: a client that leaves out a security option may
connect to an impostor. Keys of certificates must be PKCS #8, the only form that all clients read.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

from stilltide.connectors.errors import FatalError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

SHARED = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
"""The security options that every Kafka client used here supports."""

SECURITY_PREFIXES = ("sasl.", "security.", "ssl.", "enable.sasl.", "enable.ssl.", "https.")

_LOGIN = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """The security options for a Java client, such as Spark's; all other options are left out.

    Raises:
        FatalError: a security option has no equivalent in Java, or a file cannot be read.
    """
    given = _security(options, "Java's client")
    made = {
        name: given[name]
        for name in ("security.protocol", "sasl.mechanism", "ssl.key.password")
        if name in given
    }
    if "sasl.username" in given:
        login = _LOGIN[given["sasl.mechanism"]]
        made["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{login} required "
            f'username="{_quoted(given["sasl.username"])}" '
            f'password="{_quoted(given.get("sasl.password", ""))}";'
        )
    if "ssl.ca.location" in given:
        made["ssl.truststore.type"] = "PEM"
        made["ssl.truststore.location"] = given["ssl.ca.location"]
    if "ssl.certificate.location" in given:
        made["ssl.keystore.type"] = "PEM"
        made["ssl.keystore.certificate.chain"] = _content(given, "ssl.certificate.location")
        made["ssl.keystore.key"] = _content(given, "ssl.key.location")
    if not _checks_host(given):
        made["ssl.endpoint.identification.algorithm"] = ""
    return made


def tls_context(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """The TLS context of a client in pure Python; None if `security.protocol` is without TLS.

    Raises:
        FatalError: a security option has no equivalent in Python, or a PEM file is not valid.
    """
    given = _security(options, "a client in Python")
    if "SSL" not in given.get("security.protocol", ""):
        return None
    try:
        context = ssl.create_default_context(cafile=given.get("ssl.ca.location"))
        if "ssl.certificate.location" in given:
            context.load_cert_chain(
                given["ssl.certificate.location"],
                given.get("ssl.key.location"),
                given.get("ssl.key.password", ""),
            )
    except (OSError, ssl.SSLError) as error:
        raise FatalError(
            "the TLS files cannot be used",
            detail=str(error),
            hint="check ssl.ca.location, ssl.certificate.location and ssl.key.location",
        ) from error
    context.check_hostname = _checks_host(given)
    return context


def _security(options: Mapping[str, str], client: str) -> dict[str, str]:
    given = {name: value for name, value in options.items() if name.startswith(SECURITY_PREFIXES)}
    if unknown := sorted(given.keys() - SHARED):
        raise FatalError(
            f"the Kafka option {unknown[0]} cannot be passed to {client}",
            detail=f"known are {', '.join(sorted(SHARED))}",
            hint="remove it from the extra options, or use the known ones",
        )
    return given


def _checks_host(given: Mapping[str, str]) -> bool:
    return given.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _content(given: Mapping[str, str], name: str) -> str:
    path = given.get(name, "")
    try:
        return Path(path).read_text()
    except OSError as error:
        raise FatalError(
            f"{name} cannot be read: {path!r}", detail=str(error), hint="name a PEM file"
        ) from error
