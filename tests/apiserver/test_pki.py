"""The private CA and the server's certificate, the token, the kubeconfig."""

import base64
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509

from llmkube.apiserver import pki
from llmkube.apiserver.server import write_kubeconfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ["127.0.0.1", "localhost", "::1"]


def certificate_of(made):
    return x509.load_pem_x509_certificate(made.server_certificate.read_bytes())


def test_everything_is_private(tmp_path):
    """Folder and files can be read by their owner alone."""
    made = pki.ensure_pki(tmp_path / "ca", HOSTS, NOW)
    assert made.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in made.folder.iterdir()} == {0o600}


def test_the_certificate_is_for_its_hosts_and_signed_by_the_ca(tmp_path):
    """The names are those asked for and the CA's key verifies the signature."""
    made = pki.ensure_pki(tmp_path / "ca", HOSTS, NOW)
    certificate = certificate_of(made)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == HOSTS
    authority = x509.load_pem_x509_certificate(made.ca_certificate.read_bytes())
    certificate.verify_directly_issued_by(authority)


@pytest.mark.parametrize(
    ("later", "hosts", "kept"),
    [
        (timedelta(days=1), HOSTS, True),
        (pki.SERVER_LIFETIME - pki.RENEW_BEFORE - timedelta(days=1), HOSTS, True),
        (pki.SERVER_LIFETIME - pki.RENEW_BEFORE + timedelta(days=1), HOSTS, False),
        (timedelta(days=1), [*HOSTS, "example.org"], False),
    ],
)
def test_the_certificate_is_renewed_when_due_and_not_before(tmp_path, later, hosts, kept):
    """Time and other hosts renew the server's certificate; the CA that clients trust stays."""
    made = pki.ensure_pki(tmp_path / "ca", HOSTS, NOW)
    serial, authority = certificate_of(made).serial_number, made.ca_certificate.read_bytes()
    pki.ensure_pki(tmp_path / "ca", hosts, NOW + later)
    assert (certificate_of(made).serial_number == serial) is kept
    assert made.ca_certificate.read_bytes() == authority


def test_an_incomplete_ca_is_replaced(tmp_path):
    """A crash between the key and the certificate leaves a CA that is replaced, and a server certificate with it."""
    made = pki.ensure_pki(tmp_path / "ca", HOSTS, NOW)
    other = pki.ensure_pki(tmp_path / "other", HOSTS, NOW)
    made.ca_key.write_bytes(other.ca_key.read_bytes())
    pki.ensure_pki(tmp_path / "ca", HOSTS, NOW)
    certificate_of(made).verify_directly_issued_by(x509.load_pem_x509_certificate(made.ca_certificate.read_bytes()))


def test_the_context_refuses_old_protocols(tmp_path):
    """TLS 1.2 is the least, and HTTP/2 is not offered."""
    context = pki.server_context(pki.ensure_pki(tmp_path / "ca", HOSTS, datetime.now(UTC)))
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_a_running_server_renews_its_certificate(tmp_path, autojump_clock):
    """A server that runs for a year swaps its certificate without being told."""
    import trio

    made = pki.ensure_pki(tmp_path / "ca", HOSTS, NOW)
    serial = certificate_of(made).serial_number
    context = pki.server_context(made)
    start = trio.current_time()
    with trio.move_on_after(timedelta(days=280).total_seconds()):
        await pki.run_renewal(made, HOSTS, context, lambda: NOW + timedelta(seconds=trio.current_time() - start))
    assert certificate_of(made).serial_number != serial


def test_the_kubeconfig_is_self_contained(tmp_path):
    """Server, certificate and token are all inside one private file."""
    (tmp_path / "ca.crt").write_bytes(b"PEM")
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, url="https://127.0.0.1:1", ca_certificate=tmp_path / "ca.crt", token="secret")
    config = yaml.safe_load(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]) == b"PEM"
    assert config["users"][0]["user"] == {"token": "secret"}
    assert path.stat().st_mode & 0o777 == 0o600
