"""TLS contexts from PEM data; private keys touch the disk only as files of mode 0600, for an instant."""

import os
import ssl
import tempfile
from pathlib import Path

import attrs

from llmkube.k8s.auth.config import ConfigError, InlinePem, Pem, PemFile, TlsSettings


@attrs.frozen
class ClientCertificate:
    """Our side of mutual TLS."""

    certificate: bytes = attrs.field(repr=False)
    key: bytes = attrs.field(repr=False)


Stamp = tuple[tuple[int, int, int], ...]
"""Changes when any of the files does: modification time, inode and size of each."""


def stamp_of(settings: TlsSettings) -> Stamp:
    """Return the present stamp of the files that the settings name; cheap enough for every request (stat)."""
    paths = [pem.path for pem in (settings.ca, settings.certificate, settings.key) if isinstance(pem, PemFile)]
    stamps = []
    for path in paths:
        try:
            found = path.stat()
        except OSError:  # between unlink and rename of a rotation
            stamps.append((0, 0, 0))
        else:
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
    return tuple(stamps)


def make_context(settings: TlsSettings, issued: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return a TLS context for the settings as they are now.

    Args:
        settings: From the configuration; files are read.
        issued: A certificate that an exec plugin issued, used instead of the settings' own.

    Raises:
        ConfigError: A file cannot be read, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # X.509 strict mode, on by default since Python 3.13, refuses the CAs that kubeadm and k3s make; Go accepts them
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is None:
        context.load_default_certs()
    else:
        _trust(context, settings.ca)
    if issued is None and settings.certificate is not None and settings.key is not None:
        issued = ClientCertificate(_read(settings.certificate), _read(settings.key))
    if issued is not None:
        _load_certificate(context, issued)
    return context


def _trust(context: ssl.SSLContext, ca: Pem) -> None:
    try:  # what is not ASCII is a comment: bundles name their authorities
        context.load_verify_locations(cadata=_read(ca).decode("ascii", errors="ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"certificate-authority {_label(ca)} holds no usable certificate: {error}") from error


def _load_certificate(context: ssl.SSLContext, pair: ClientCertificate) -> None:
    # OpenSSL reads certificates from files only; mkstemp makes a file that only we can read, and it is gone at once
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pair.certificate + b"\n" + pair.key)
        context.load_cert_chain(path, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"client certificate and key cannot be used: {error}") from error
    finally:
        Path(path).unlink()


def _no_password() -> str:
    """Refuse encrypted keys: OpenSSL would ask on the terminal, and a daemon would hang there."""
    raise ValueError("the key is encrypted, and a daemon cannot ask for its password")


def _read(pem: Pem) -> bytes:
    if isinstance(pem, InlinePem):
        return pem.data
    try:
        return pem.path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{pem.path} cannot be read: {error.strerror}") from error


def _label(pem: Pem) -> str:
    return str(pem.path) if isinstance(pem, PemFile) else "data"
