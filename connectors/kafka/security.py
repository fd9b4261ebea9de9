"""Translates TLS and SASL options from librdkafka's names to those of the other Kafka clients.

*Source*: librdkafka's CONFIGURATION.md; docs/internals/kafka-clients.md.

Refuses an option that one of the clients lacks: a client that leaves out a security option may
connect to an impostor. Keys of certificates must be PKCS #8, the only form that all clients read.
"""

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.oauth import FETCH_TIMEOUT_S, OidcClient

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

OF_TOKENS = frozenset(
    {
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "https.ca.location",
    }
)
"""The security options of `oidc_client`."""

SHARED = OF_TOKENS | frozenset(
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

SECRET = frozenset({"sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret"})
"""The options whose values are secrets."""

_HOST_CHECK = "ssl.endpoint.identification.algorithm"
_OAUTH = "OAUTHBEARER"
_OAUTH_NEEDS = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
)
_JAAS = "org.apache.kafka.common.security."

_PEM_ENCRYPTED = "-----BEGIN ENCRYPTED PRIVATE KEY-----"
_PBES2 = bytes.fromhex("2a864886f70d01050d")

_LOGIN = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def sent_in_clear(options: Mapping[str, str]) -> list[str]:
    """The options whose values travel over the network unencrypted, to brokers or for a token.

    SCRAM sends no password, so that it is not among them.
    """
    options_in_clear: list[str] = []
    mechanism = options.get("sasl.mechanism")
    if options.get("security.protocol") == "SASL_PLAINTEXT":
        options_in_clear += {"PLAIN": ["sasl.password"], _OAUTH: ["access tokens"]}.get(
            mechanism or "", []
        )
    endpoint = options.get("sasl.oauthbearer.token.endpoint.url", "")
    if mechanism == _OAUTH and endpoint.lower().startswith("http:"):
        options_in_clear.append("sasl.oauthbearer.client.secret")
    return options_in_clear


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
        made["sasl.jaas.config"] = _jaas(
            login, username=given["sasl.username"], password=given.get("sasl.password", "")
        )
    if client := oidc_client(given):
        made |= _java_oauth(client)
    if "ssl.ca.location" in given:
        made["ssl.truststore.type"] = "PEM"
        made["ssl.truststore.location"] = given["ssl.ca.location"]
    if "ssl.certificate.location" in given:
        made["ssl.keystore.type"] = "PEM"
        made["ssl.keystore.certificate.chain"] = _content(given, "ssl.certificate.location")
        made["ssl.keystore.key"] = _java_key(given)
    if not checks_host(given.get(_HOST_CHECK, "https")):
        made[_HOST_CHECK] = ""
    return made


def oidc_client(options: Mapping[str, str]) -> OidcClient | None:
    """The client that fetches tokens; None if the mechanism is not OAUTHBEARER.

    Raises:
        FatalError: an option of OAuth is missing, or asks for a method other than `oidc`.
    """
    if options.get("sasl.mechanism") != _OAUTH:
        return None
    if (method := options.get("sasl.oauthbearer.method", "")) != "oidc":
        raise FatalError(
            f"sasl.oauthbearer.method is {method!r}, not 'oidc'",
            detail="tokens are fetched by the grant of client credentials, and in no other way",
            hint="set sasl.oauthbearer.method to oidc",
        )
    for name in _OAUTH_NEEDS:
        if not options.get(name):
            raise FatalError(f"sasl.mechanism is {_OAUTH}, but {name} is not set", hint="set it")
    pairs = options.get("sasl.oauthbearer.extensions", "").split(",")
    return OidcClient(
        endpoint=options["sasl.oauthbearer.token.endpoint.url"],
        client_id=options["sasl.oauthbearer.client.id"],
        client_secret=options["sasl.oauthbearer.client.secret"],
        scope=options.get("sasl.oauthbearer.scope", ""),
        extensions={
            name.strip(): value.strip()
            for name, equals, value in (pair.partition("=") for pair in pairs)
            if equals
        },
        ca_location=options.get("https.ca.location"),
    )


def _java_oauth(client: OidcClient) -> dict[str, str]:
    """Options with which Kafka's own login handler fetches the tokens."""
    module = {"clientId": client.client_id, "clientSecret": client.client_secret}
    if client.scope:
        module["scope"] = client.scope
    if client.ca_location is not None:
        module |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": client.ca_location}
    module |= {f"extension_{name}": value for name, value in client.extensions.items()}
    handler = f"{_JAAS}oauthbearer.OAuthBearerLoginCallbackHandler"
    timeout_ms = str(int(FETCH_TIMEOUT_S * 1000))
    return {
        "sasl.jaas.config": _jaas("oauthbearer.OAuthBearerLoginModule", **module),
        "sasl.login.callback.handler.class": handler,
        "sasl.oauthbearer.token.endpoint.url": client.endpoint,
        "sasl.login.connect.timeout.ms": timeout_ms,
        "sasl.login.read.timeout.ms": timeout_ms,
    }


def _jaas(module: str, **options: str) -> str:
    shown = "".join(f' {name}="{_quoted(value)}"' for name, value in options.items())
    return f"{_JAAS}{module} required{shown};"


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
    context.check_hostname = checks_host(given.get(_HOST_CHECK, "https"))
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


def checks_host(algorithm: str) -> bool:
    """Whether ssl.endpoint.identification.algorithm asks for the right name in a certificate."""
    return algorithm.lower() != "none"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _java_key(given: Mapping[str, str]) -> str:
    """The key, unless it is encrypted by PBES2, which Kafka's client for Java cannot decrypt."""
    text = _content(given, "ssl.key.location")
    _, heading, rest = text.partition(_PEM_ENCRYPTED)
    if heading:
        lines = rest.partition("-----")[0]
        if _PBES2 in base64.b64decode(lines.encode(errors="ignore")):
            raise FatalError(
                f"Spark cannot decrypt the key {given['ssl.key.location']}",
                detail="Kafka's client for Java does not know PBES2, openssl's usual encryption",
                hint="for Spark use a key without password, or: openssl pkcs8 -topk8 "
                "-v1 PBE-SHA1-3DES -in KEY -out NEW",
            )
    return text


def _content(given: Mapping[str, str], name: str) -> str:
    path = given.get(name, "")
    try:
        return Path(path).read_text()
    except OSError as error:
        raise FatalError(
            f"{name} cannot be read: {path!r}", detail=str(error), hint="name a PEM file"
        ) from error
