"""A broker's listeners with each kind of authentication, and the settings that reach them."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.local.addresses import HOST, Listener, free_port
from stilltide.connectors.local.java import find_java
from tests.support.processes import oidc
from tests.support.processes.certificates import Authority

USER = "stilltide"
PASSWORD = 'tide "still" 7'  # noqa: S105 - of a broker that lives as long as the test
KEY_PASSWORD = "key of the client"  # noqa: S105 - as above
_KAFKA = "org.apache.kafka.common.security"
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


def plain_listener() -> Secured:
    """SASL_PLAINTEXT with PLAIN and one user."""
    # A backslash for the login's quotes, and another for the file of properties.
    password = PASSWORD.replace('"', '\\\\"')
    login = f'{_KAFKA}.plain.PlainLoginModule required user_{USER}="{password}";'
    properties = {"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": login}
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": USER,
        "sasl_password": PASSWORD,
    }
    return Secured(Listener("PLAIN", "SASL_PLAINTEXT", free_port(), properties), settings)


def mutual_tls_listener(directory: Path) -> Secured:
    """SSL where the client shows a certificate, too.

    Next to the key of the client lies the same kind of key with KEY_PASSWORD, `encrypted.key`.
    """
    brokers, clients = Authority(directory, "brokers"), Authority(directory, "clients")
    client = clients.issue("client")
    clients.issue("encrypted", password=KEY_PASSWORD)
    properties = _pem(brokers, "mutual") | {
        "ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(clients.ca),
    }
    settings = {
        "security_protocol": "SSL",
        "ssl_ca_location": str(brokers.ca),
        "ssl_certificate_location": str(client.certificate),
        "ssl_key_location": str(client.key),
    }
    return Secured(Listener("MUTUAL", "SSL", free_port(), properties), settings)


def oauth_listener(authority: Authority, server: oidc.OidcServer) -> Secured:
    """SASL_SSL with OAUTHBEARER; Kafka's own validator checks the tokens of `server`."""
    handler = f"{_KAFKA}.oauthbearer.OAuthBearerValidatorCallbackHandler"
    keys = server.jwks.as_uri()
    properties = _pem(authority, "oauth") | {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule required;",
        "oauthbearer.sasl.server.callback.handler.class": handler,
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.audience": oidc.AUDIENCE,
        "sasl.oauthbearer.expected.issuer": oidc.ISSUER,
    }
    flags = (
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}",
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={server.jwks}",
    )
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_client_id": oidc.CLIENT,
        "sasl_oauthbearer_client_secret": oidc.SECRET,
        "sasl_oauthbearer_token_endpoint_url": server.url,
        "sasl_oauthbearer_scope": oidc.SCOPE,
        "ssl_ca_location": str(authority.ca),
        "https_ca_location": str(authority.ca),
    }
    return Secured(
        Listener("OAUTH", "SASL_SSL", free_port(), properties, jvm_flags=flags), settings
    )


def _pem(authority: Authority, name: str) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue(name).both),
    }
