"""A small certificate authority that lives as long as its cluster."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE: Final = dt.timedelta(days=365)
# A node whose clock lags a little must still accept what was just signed.
_SLACK: Final = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate, both in PEM."""

    key: bytes
    certificate: bytes


class Authority:
    """Signs certificates with a key that was made just now."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        self.certificate: Final = _pem(builder.sign(self._key, hashes.SHA256()))

    def sign(
        self,
        name: str,
        *,
        groups: Sequence[str] = (),
        addresses: Sequence[IPv4Address] = (),
        hosts: Sequence[str] = (),
    ) -> KeyPair:
        """A key pair for `name`, as Kubernetes reads it: CN is the user, O its groups."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = _builder(_name(name, *groups), self._name, key.public_key()).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if addresses or hosts:
            names = [*map(x509.DNSName, hosts), *map(x509.IPAddress, addresses)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return KeyPair(private_pem(key), _pem(builder.sign(self._key, hashes.SHA256())))


def signing_key() -> tuple[bytes, bytes]:
    """A private and a public key in PEM, for the tokens of service accounts."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private_pem(key), public


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _name(name: str, *groups: str) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _LIFE)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
