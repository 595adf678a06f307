"""Parts of an administrator's configuration that a join copies, and free host names."""

import base64
import json
import shlex

import attrs
import pytest
import trio

from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.host_identity import (
    agent_command,
    check_name_is_free,
    kubeconfig_of,
    portable_tls,
    resolve_grant,
)
from llmkube.k8s.auth.config import TlsSettings
from llmkube.k8s.builtins import Lease
from llmkube.k8s.codec import decode
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.programs.failures import CommandError
from llmkube.supervisor.values.join_record import JoinRecord

RECORD = JoinRecord(host="box", server="https://x")
DURATION = 20


def test_administrators_credentials_are_left_out(tmp_path):
    """The certificate authority is copied; the client's certificate and key are not."""
    ca = tmp_path / "ca.crt"
    ca.write_bytes(b"pem")
    for pem in (b"pem", ca):
        admin = TlsSettings(ca=pem, certificate=b"mine", key=b"secret", server_name="api")
        taken = portable_tls(admin, "admin")
        assert taken == TlsSettings(ca=b"pem", server_name="api")
        document = kubeconfig_of("https://outer", taken, "ml", tmp_path / "host-1.token")
        assert document["clusters"][0]["cluster"] == {
            "server": "https://outer",
            "certificate-authority-data": base64.b64encode(b"pem").decode(),
            "tls-server-name": "api",
        }
        assert document["users"] == [{"name": "host", "user": {"tokenFile": "host-1.token"}}]


def test_insecure_tls_is_kept(tmp_path):
    taken = portable_tls(TlsSettings(insecure=True), "admin")
    named = kubeconfig_of("https://x", taken, "ml", tmp_path / "t")["clusters"][0]["cluster"]
    assert named == {"server": "https://x", "insecure-skip-tls-verify": True}


def test_an_authority_that_cannot_be_read_is_reported(tmp_path):
    with pytest.raises(UserError, match="certificate authority of admin cannot be read"):
        portable_tls(TlsSettings(ca=tmp_path / "none"), "admin")


@attrs.define(eq=False)
class Leases:
    """The Lease of `box`, which a machine renews every five seconds until some time, or an error in its place."""

    machine: str = ""
    until: float = 0.0
    error: Exception | None = None

    async def get(self, kind, key):
        await trio.lowlevel.checkpoint()
        assert (kind, str(key)) == (Lease, "llmkube-system/box")
        if self.error is not None:
            raise self.error
        annotations = {"inference.llmkube.dev/machine": self.machine, "inference.llmkube.dev/address": "10.0.0.7"}
        version = str(int(min(trio.current_time(), self.until) // 5))
        metadata = {
            "name": "box",
            "namespace": "llmkube-system",
            "resourceVersion": version,
            "annotations": annotations,
        }
        return decode(Lease, {"metadata": metadata, "spec": {"leaseDurationSeconds": DURATION}})


@pytest.mark.parametrize("own", ["", "elsewhere (2)"])
async def test_the_name_of_a_living_machine_is_refused(autojump_clock, own):
    """The error names machine and address, and both fixes."""
    begun = trio.current_time()
    with pytest.raises(CommandError, match=r"mini \(1\) at 10\.0\.0\.7 serves under it; choose another.*--overwrite"):
        await check_name_is_free(Leases("mini (1)", begun + 1000), RECORD, own)
    assert trio.current_time() - begun <= 6


async def test_name_is_free_after_its_lease_expires(autojump_clock):
    begun = trio.current_time()
    await check_name_is_free(Leases("mini (1)"), RECORD, "here (2)")
    assert DURATION <= trio.current_time() - begun < DURATION + 2


@pytest.mark.parametrize(
    "leases",
    [
        Leases("mini (1)", 1000),
        Leases("", 1000),
        Leases(error=NotFoundError("x", code=404)),
        Leases(error=ForbiddenError("x", code=403)),
    ],
)
async def test_a_name_that_no_other_machine_has_is_free_at_once(autojump_clock, leases):
    """The Lease is this machine's own, has no machine, does not exist, or may not be read."""
    begun = trio.current_time()
    await check_name_is_free(leases, RECORD, "mini-at-home (1)")
    assert trio.current_time() == begun


def test_a_command_to_paste_has_one_word_for_each_of_its_values(tmp_path):
    """Folders with spaces and names with shell characters stay one argument each."""
    folder = tmp_path / "Application Support" / "llmkube"
    record = JoinRecord(host="box", server="https://api", namespace="x; touch pwned", lease_namespace="$(y)")
    words = shlex.split(agent_command(record, folder, named_folder=True))
    assert words == [
        *("llmkube", "agent", "--kubeconfig", str(folder / "host.kubeconfig"), "--host-name", "box"),
        *("--namespace", "x; touch pwned", "--lease-namespace", "$(y)", "--state-dir", str(folder)),
    ]


ADMIN = {
    "clusters": [{"name": "c", "cluster": {"server": "https://inner:6443"}}],
    "users": [{"name": "u", "user": {"token": "x"}}],
    "contexts": [{"name": "admin", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
    "current-context": "admin",
}


def granted(folder, **flags):
    path = folder / "admin"
    path.write_text(json.dumps(ADMIN))
    whole = {"kubeconfig": path, "networks": ("10.0.0.7/32",), "lease_namespace": "llmkube-system", "overwrite": False}
    whole |= {"context": None, "server": None, "namespace": None, "all_namespaces": False}
    whole |= {"secrets": (), "allow_from": ()}
    return resolve_grant(whole | flags, "box", folder)[1]


def test_missing_flags_default_to_the_context(tmp_path):
    """Server and namespace default to the context's; -A means no namespace."""
    record = granted(tmp_path)
    assert (record.server, record.namespace) == ("https://inner:6443", "ml")
    record = granted(tmp_path, server="https://outer", namespace="other")
    assert (record.server, record.namespace) == ("https://outer", "other")
    assert granted(tmp_path, all_namespaces=True).namespace == ""
