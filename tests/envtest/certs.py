"""Keys and certificates of a throw-away control plane: one CA, what it signs, and tokens of service accounts."""

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from typing import Any

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=7)
LEEWAY = datetime.timedelta(hours=1)
"""Time before now from which certificates are valid, for a clock that steps back a little."""


@attrs.frozen
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes = attrs.field(repr=False)


class Authority:
    """A private CA that lives as long as the object; its key is never written down."""

    def __init__(self, name: str, now: datetime.datetime) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = certificate.public_bytes(Encoding.PEM)

    def server(self, name: str, hosts: Sequence[str]) -> Pair:
        """Return what a server shows to its clients, valid for these names and addresses."""
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._pair(_name(name), ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """Return what a client shows to be this user in these groups."""
        return self._pair(_name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH)

    def _pair(self, subject: x509.Name, purpose: x509.ObjectIdentifier, *more: x509.ExtensionType) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate.public_bytes(Encoding.PEM), _pem(key))

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - LEEWAY)
            .not_valid_after(self._now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(issuer_id, critical=False)
        )


class ServiceAccountSigner:
    """The key with which a cluster signs service accounts' tokens, so that a test can make one that lasts seconds."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.private_pem = _pem(self._key)
        self.public_pem = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def token(self, namespace: str, name: str, uid: str, *, now: datetime.datetime, lifetime_seconds: float) -> str:
        """Return a bearer token of an existing ServiceAccount; TokenRequest itself gives none under ten minutes."""
        issued = int(now.timestamp())
        claims = {
            "iss": self.issuer,
            "aud": [self.issuer],
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "iat": issued,
            "nbf": issued,
            "exp": int(issued + lifetime_seconds),
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
        }
        signed = f"{_segment({'alg': 'RS256', 'typ': 'JWT'})}.{_segment(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64url(signature)}"


def _segment(value: Any) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _name(common_name: str, groups: Sequence[str] = ()) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
