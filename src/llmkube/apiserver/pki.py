"""A private CA and a server certificate for the embedded server.

kubectl sends its token over TLS only. The CA and the server's key are in the state directory, 0600. The CA is valid for
10 years, so that it outlives every kubeconfig that trusts it; the server's certificate is valid for a year, and is
renewed well before it expires, without a restart.
"""

import ipaddress
import ssl
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import attrs
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmkube.base.private_files import make_private_folder, write_private

CA_LIFETIME: Final = timedelta(days=3650)
"""Validity of the private CA."""

SERVER_LIFETIME: Final = timedelta(days=365)
"""Validity of a server certificate; Apple's clients refuse more than 398 days."""

RENEW_BEFORE: Final = timedelta(days=90)
"""A server certificate that expires sooner than this is renewed."""

RENEWAL_CHECK_SECONDS: Final = 12 * 3600.0
"""Interval at which a running server checks its certificate."""

_CLOCK_SKEW: Final = timedelta(hours=1)  # a client whose clock is a little behind must not see "not yet valid"


@attrs.frozen
class Pki:
    """Paths of the CA and the server's certificate; each file is 0600."""

    folder: Path

    @property
    def ca_certificate(self) -> Path:
        """The CA certificate, which clients trust."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """The CA's private key."""
        return self.folder / "ca.key"

    @property
    def server_certificate(self) -> Path:
        """The server's certificate, in one file with its key so that the two always match."""
        return self.folder / "server.pem"


def ensure_pki(folder: Path, hosts: Sequence[str], now: datetime) -> Pki:
    """Return the CA and a server certificate for `hosts` (names and addresses); create or renew what is due.

    Blocks on file access and key generation (milliseconds, elliptic curve).
    """
    make_private_folder(folder)
    pki = Pki(folder)
    authority = _load_authority(pki, now)
    if authority is None:
        authority = _create_authority(pki, now)
    if not _is_certificate_valid(pki, authority[0], hosts, now):
        _issue(pki, authority, hosts, now)
    return pki


def server_context(pki: Pki) -> ssl.SSLContext:
    """Return the TLS context to serve with; `load_cert_chain` on it replaces the certificate for new connections."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])  # Go clients would try HTTP/2 otherwise
    context.load_cert_chain(pki.server_certificate)
    return context


async def run_renewal(pki: Pki, hosts: Sequence[str], context: ssl.SSLContext, utcnow: Callable[[], datetime]) -> None:
    """Renew the certificate of a long-running server before it expires; never returns."""
    while True:
        await trio.sleep(RENEWAL_CHECK_SECONDS)
        ensure_pki(pki.folder, hosts, utcnow())
        context.load_cert_chain(pki.server_certificate)


_Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _load_authority(pki: Pki, now: datetime) -> _Authority | None:
    if not (pki.ca_certificate.exists() and pki.ca_key.exists()):
        return None
    certificate = x509.load_pem_x509_certificate(pki.ca_certificate.read_bytes())
    if certificate.not_valid_after_utc - SERVER_LIFETIME < now:
        return None
    key = serialization.load_pem_private_key(pki.ca_key.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None  # a crash between the two files: nothing has been signed with this key
    return certificate, key


def _create_authority(pki: Pki, now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "LLMKube embedded API server CA")])
    certificate = (
        _builder(name, name, key, now, CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_private(pki.ca_key, _private_pem(key))
    write_private(pki.ca_certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _issue(pki: Pki, authority: _Authority, hosts: Sequence[str], now: datetime) -> None:
    ca_certificate, ca_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llmkube-apiserver")])
    certificate = (
        _builder(name, ca_certificate.subject, key, now, SERVER_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(hosts)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_private(pki.server_certificate, certificate.public_bytes(serialization.Encoding.PEM) + _private_pem(key))


def _is_certificate_valid(pki: Pki, authority: x509.Certificate, hosts: Sequence[str], now: datetime) -> bool:
    if not pki.server_certificate.exists():
        return False
    certificate = x509.load_pem_x509_certificate(pki.server_certificate.read_bytes())
    if certificate.not_valid_after_utc - RENEW_BEFORE < now:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if list(names) != _alternative_names(hosts):
        return False
    issuer = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    return issuer == x509.SubjectKeyIdentifier.from_public_key(authority.public_key()).digest


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
