"""TLS and SASL, given once under librdkafka's names, as the other clients take them.

*Source*: librdkafka's CONFIGURATION.md; facts, faust.md 2 (credentials), kafka.md 4, spark.md 2.

Refuses what some client of ours cannot do: one that leaves out what its user asked for may talk to
a stranger. Keys of certificates must be PKCS #8, which alone all of them read.
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
"""What every client of ours can do."""

SECURITY_PREFIXES = ("sasl.", "security.", "ssl.", "enable.sasl.", "enable.ssl.", "https.")

_LOGIN = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """The same for a Java client, such as Spark's; options of no concern to security are left out.

    Raises:
        FatalError: an option of security that has no equal, or a file that cannot be read.
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
    """The TLS that a client in pure Python speaks; None where `security.protocol` has none.

    Raises:
        FatalError: an option of security that has no equal, or a file that is not what it must be.
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
            "the files of TLS cannot be used",
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
            hint="take it out of the extra options, or use those",
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
