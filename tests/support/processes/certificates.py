"""An authority of a test's own, and the PEM files of certificates that it signs."""

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = dt.timedelta(days=30)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Certificate(NamedTuple):
    """The files of a certificate, its key (PKCS #8), and both in one file."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority whose files are in `directory`; `ca` is its own certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._own = self._signed(self._name, self._key, x509.BasicConstraints(True, None), _SIGNS)
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, host: str = "127.0.0.1", password: str = "") -> Certificate:
        """A certificate for a host; its key is encrypted if there is a password."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        certificate = self._signed(subject, key, hosts)
        encryption = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        made = Certificate(*(self._directory / f"{name}.{kind}" for kind in ("crt", "key", "pem")))
        made.certificate.write_bytes(certificate.public_bytes(pem))
        made.key.write_bytes(key.private_bytes(pem, pkcs8, encryption))
        made.both.write_bytes(made.key.read_bytes() + made.certificate.read_bytes())
        return made

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *extensions: x509.ExtensionType,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        # From 3.13 on Python asks for the extensions that RFC 5280 does.
        identities = (
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + _LIFE)
        )
        for extension in (*extensions, *identities):
            is_critical = isinstance(extension, (x509.BasicConstraints, x509.KeyUsage))
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(self._key, hashes.SHA256())
