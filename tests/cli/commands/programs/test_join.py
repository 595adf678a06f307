"""What `llmkube agent join` writes; that a host works with it is in tests/envtest/test_real_agent.py."""

import base64

import pytest
from click.testing import CliRunner

from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.join import kubeconfig_of
from llmkube.cli.main import cli
from llmkube.k8s.auth.config import BearerToken, ClusterConfig, InlinePem, PemFile, TlsSettings


def test_the_host_s_kubeconfig_has_nothing_of_the_administrator(tmp_path):
    """Server, authority and namespace are taken over; the credential is the host's file."""
    ca = tmp_path / "ca.crt"
    ca.write_bytes(b"pem")
    for pem in (InlinePem(b"pem"), PemFile(ca)):
        tls = TlsSettings(ca=pem, certificate=InlinePem(b"mine"), key=InlinePem(b"secret"), server_name="api")
        admin = ClusterConfig(server="https://inner", tls=tls, identity=BearerToken("secret"), context="admin")
        document = kubeconfig_of(admin, "https://outer", "ml")
        assert document["clusters"][0]["cluster"] == {
            "server": "https://outer",
            "certificate-authority-data": base64.b64encode(b"pem").decode(),
            "tls-server-name": "api",
        }
        assert document["users"] == [{"name": "host", "user": {"tokenFile": "host.token"}}]
        assert document["contexts"][0]["context"]["namespace"] == "ml"
        assert "secret" not in str(document)


def test_an_authority_that_cannot_be_read_is_said(tmp_path):
    """Before anything is made in the cluster."""
    admin = ClusterConfig(server="https://x", tls=TlsSettings(ca=PemFile(tmp_path / "none")))
    with pytest.raises(UserError, match="certificate authority"):
        kubeconfig_of(admin, "https://x", "ml")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "--network"),
        (("--network", "10.0.0.0/8", "-A", "-n", "ml"), "exclude each other"),
    ],
)
def test_what_does_not_fit_together_is_refused(args, said):
    """Nothing is asked of a cluster."""
    done = CliRunner().invoke(cli, ["agent", "join", *args])
    assert done.exit_code != 0
    assert said in done.output
