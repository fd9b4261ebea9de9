"""Translates settings of the Kafka connector to kafka-python's options.

*Source*: connectors.kafka.config. Users write librdkafka's option names once, for all clients.

Refuses a TLS or SASL option that has no equivalent in kafka-python: a client that leaves out a
security option may connect to an impostor.
"""

from collections.abc import Callable, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from stilltide.connectors.errors import ConnectorError, FatalError
from stilltide.connectors.kafka.config import KafkaConfig, milliseconds
from stilltide.connectors.kafka.oauth import TokenSource
from stilltide.connectors.kafka.security import OF_TOKENS, oidc_client

RESPONSE_BYTES_MAX = 128 * 1024 * 1024
"""Longest answer accepted; the largest batch that a topic can be configured to accept fits."""


def _checks_host(algorithm: str) -> bool:
    return algorithm.lower() != "none"


_TRANSLATED: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "security.protocol": ("security_protocol", str.upper),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crl.location": ("ssl_crlfile", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _checks_host),
}
_SECURITY = ("sasl.", "security.", "ssl.", "enable.sasl.", "enable.ssl.", "https.")


class RawTokens(AbstractTokenProvider):
    """Tokens in the form in which kafka-python asks for them: on the thread of its own loop.

    Args:
        source: the tokens.
    """

    def __init__(self, source: TokenSource) -> None:
        super().__init__()
        self.source = source

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - no type there
        """The token; waits only if `source.fresh` was not awaited before, or is too long ago."""
        try:
            return self.source.token()
        except ConnectorError as error:
            # An error that kafka-python knows: the connection fails, and is tried again.
            raise kafka_errors.KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        """The extensions of the settings."""
        return dict(self.source.client.extensions)


def raw_options(config: KafkaConfig, client_id: str) -> dict[str, Any]:
    """Options of kafka-python's connection manager.

    Extra options that do not concern security are left out: kafka-python has not got them.

    Raises:
        FatalError: an extra option concerns security and has no equivalent in kafka-python.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "client_id": client_id,
        "request_timeout_ms": milliseconds(config.request_timeout_s),
        "socket_connection_setup_timeout_ms": milliseconds(config.request_timeout_s),
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 1000,
        "receive_message_max_bytes": RESPONSE_BYTES_MAX,
        # The broker answers requests in turn. kafka-python refuses requests above this number,
        # it does not queue them.
        "max_in_flight_requests_per_connection": 1000,
    }
    for name, value in config.extra.items():
        if name in _TRANSLATED:
            ours, convert = _TRANSLATED[name]
            options[ours] = convert(value)
        elif name.startswith(_SECURITY) and name not in OF_TOKENS:
            raise FatalError(
                f"the Kafka option {name} cannot be passed to the reader of raw batches",
                detail=f"known are {', '.join(sorted(_TRANSLATED))}",
                hint="remove it from the extra options, or use the known ones",
            )
    if client := oidc_client(config.extra):
        options["sasl_oauth_token_provider"] = RawTokens(TokenSource(client))
    return options
