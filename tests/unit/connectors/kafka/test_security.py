from pathlib import Path

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.security import java_options, tls_context

SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": 'back\\slash "quoted"',
}


def test_java_logs_in_with_what_was_given():
    """User and password become a login module of the mechanism, with quotes escaped."""
    assert java_options(SCRAM) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="back\\\\slash \\"quoted\\"";',
    }


def test_java_trusts_and_shows_pem_files(tmp_path: Path):
    """Certificates stay PEM; where the host shall not be checked, Java wants an empty algorithm."""
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.write_text("certificate")
    key.write_text("key")
    assert java_options(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.key.password": "p",
            "ssl.endpoint.identification.algorithm": "none",
            "socket.keepalive.enable": "true",
        }
    ) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "certificate",
        "ssl.keystore.key": "key",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_nothing_given_is_nothing_asked():
    """Without options of security no client gets any."""
    assert java_options({}) == {}
    assert tls_context({}) is None
    assert tls_context(SCRAM) is None


def test_host_is_checked_unless_told_otherwise():
    """A certificate for another host is refused by default."""
    given = {"security.protocol": "SSL"}
    checked = tls_context(given)
    unchecked = tls_context({**given, "ssl.endpoint.identification.algorithm": "none"})
    assert checked is not None
    assert unchecked is not None
    assert (checked.check_hostname, unchecked.check_hostname) == (True, False)


@pytest.mark.parametrize("convert", [java_options, tls_context])
def test_security_that_cannot_be_passed_on_is_refused(convert: object):
    """Never left out in silence."""
    assert callable(convert)
    with pytest.raises(FatalError, match=r"ssl\.crl\.location"):
        convert({"ssl.crl.location": "x"})


def test_unreadable_files_of_tls_are_named(tmp_path: Path):
    """A CA that is away, or is none, stops the client before it connects."""
    empty = tmp_path / "ca.pem"
    empty.write_text("")
    for path in (tmp_path / "away.pem", empty):
        with pytest.raises(FatalError, match="TLS files"):
            tls_context({"security.protocol": "SSL", "ssl.ca.location": str(path)})
