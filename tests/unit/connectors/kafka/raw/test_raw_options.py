import pytest
from kafka.net.manager import KafkaConnectionManager

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.line import _TRANSLATED, raw_options


def test_options_of_tls_and_sasl_are_passed_on():
    """Users give librdkafka's names once; the other library gets its own."""
    extra = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.receive.buffer.bytes": "1000",
    }
    options = raw_options(KafkaConfig("h:1,i:2", extra=extra, request_timeout_s=2.5), "c")
    assert options["bootstrap_servers"] == "h:1,i:2"
    assert options["client_id"] == "c"
    assert options["request_timeout_ms"] == 2500
    assert options["security_protocol"] == "SASL_SSL"
    assert options["sasl_mechanism"] == "SCRAM-SHA-256"
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "p")
    assert options["ssl_cafile"] == "ca.pem"
    assert options["ssl_check_hostname"] is False
    assert "socket.receive.buffer.bytes" not in options


def test_every_option_is_known_to_the_library():
    """It passes over names that it does not know, so a wrong one would be lost in silence."""
    made = raw_options(KafkaConfig("h:1"), "c").keys() | {name for name, _ in _TRANSLATED.values()}
    assert made <= KafkaConnectionManager.DEFAULT_CONFIG.keys()


@pytest.mark.parametrize(
    "name",
    ["ssl.keystore.location", "sasl.oauthbearer.config", "enable.ssl.certificate.verification"],
)
def test_security_that_cannot_be_passed_on_is_refused(name: str):
    """Never left out in silence; the error names it and what is known."""
    with pytest.raises(FatalError, match=name) as caught:
        raw_options(KafkaConfig("h:1", extra={name: "x"}), "c")
    assert "ssl.ca.location" in caught.value.detail
