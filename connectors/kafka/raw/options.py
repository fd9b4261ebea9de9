"""Settings of the Kafka connector as kafka-python takes them.

*Source*: connectors.kafka.config; kafka.md 4. Users give librdkafka's names once, for all clients.

Refuses an option of TLS or SASL that has no equal in kafka-python: a client that leaves out what
its user asked for may talk to a stranger.
"""

from collections.abc import Callable, Mapping
from typing import Any

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig, milliseconds

RESPONSE_BYTES_MAX = 128 * 1024 * 1024
"""A longer answer is taken for garbage; the largest batch that a topic may be set to take fits."""


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


def raw_options(config: KafkaConfig, client_id: str) -> dict[str, Any]:
    """Options of kafka-python's connection manager.

    Extra options of librdkafka that do not concern security mean nothing here and are left out.

    Raises:
        FatalError: an extra option that concerns security and cannot be passed on.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "client_id": client_id,
        "request_timeout_ms": milliseconds(config.request_timeout_s),
        "socket_connection_setup_timeout_ms": milliseconds(config.request_timeout_s),
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 1000,
        "receive_message_max_bytes": RESPONSE_BYTES_MAX,
        # Each waits on the broker in turn; a caller beyond would be turned away, not queued.
        "max_in_flight_requests_per_connection": 1000,
    }
    for name, value in config.extra.items():
        if name in _TRANSLATED:
            ours, convert = _TRANSLATED[name]
            options[ours] = convert(value)
        elif name.startswith(_SECURITY):
            raise FatalError(
                f"the Kafka option {name} cannot be passed to the reader of raw batches",
                detail=f"it knows {', '.join(sorted(_TRANSLATED))}",
                hint="take it out of the extra options, or use those",
            )
    return options
