"""A broker's listeners with SCRAM and with TLS, and the settings that reach them."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.local.addresses import HOST, Listener, free_port
from stilltide.connectors.local.java import find_java

USER = "stilltide"
PASSWORD = 'tide "still" 7'  # noqa: S105 - of a broker that lives as long as the test
_STORE_PASSWORD = "changeit"  # noqa: S105 - of a certificate that lives as long as the test


class Secured(NamedTuple):
    """A listener, and the settings with which a client uses it, without the address."""

    listener: Listener
    settings: dict[str, str]


def scram_listener() -> Secured:
    """SASL_PLAINTEXT with SCRAM-SHA-256 and one user."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    listener = Listener(
        "SCRAM",
        "SASL_PLAINTEXT",
        free_port(),
        {
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "scram-sha-256.sasl.jaas.config": login,
        },
        {USER: PASSWORD},
    )
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": USER,
        "sasl_password": PASSWORD,
    }
    return Secured(listener, settings)


def tls_listener(directory: Path) -> Secured:
    """SSL with a self-signed certificate for HOST, whose files are written to `directory`."""
    store, ca = directory / "broker.p12", directory / "ca.pem"
    keytool = find_java().home / "bin" / "keytool"
    common = ["-alias", "broker", "-keystore", store, "-storepass", _STORE_PASSWORD]
    made = ["-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-dname", "CN=broker"]
    extended = ["-ext", f"san=ip:{HOST}", "-ext", "bc:c=ca:true", "-validity", "30"]
    subprocess.run([keytool, *made, *extended, *common], check=True, capture_output=True)
    subprocess.run(
        [keytool, "-exportcert", "-rfc", "-file", ca, *common], check=True, capture_output=True
    )
    listener = Listener(
        "TLS",
        "SSL",
        free_port(),
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": _STORE_PASSWORD,
            "ssl.key.password": _STORE_PASSWORD,
        },
    )
    return Secured(listener, {"security_protocol": "SSL", "ssl_ca_location": str(ca)})
