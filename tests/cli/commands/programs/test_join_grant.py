"""What an administrator says of a host fits together, or is refused before a cluster is asked."""

import json

import pytest

from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.join_grant import Grant

ADMIN = {
    "clusters": [{"name": "c", "cluster": {"server": "https://inner:6443"}}],
    "users": [{"name": "u", "user": {"token": "x"}}],
    "contexts": [{"name": "admin", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
    "current-context": "admin",
}


def decided(folder, **said):
    path = folder / "admin"
    path.write_text(json.dumps(ADMIN))
    whole = {
        "kubeconfig": path,
        "context": None,
        "server": None,
        "networks": ("10.0.0.7/32",),
        "namespace": None,
        "all_namespaces": False,
        "secrets": (),
        "lease_namespace": "llmkube-system",
        "allow_from": (),
        "overwrite": False,
    }
    return Grant(**(whole | said)).decided("box", folder)[1]


def test_what_is_not_said_is_the_context_s(tmp_path):
    """Server and namespace are, unless the command line names others; -A is no namespace."""
    record = decided(tmp_path)
    assert (record.server, record.namespace) == ("https://inner:6443", "ml")
    record = decided(tmp_path, server="https://outer", namespace="other")
    assert (record.server, record.namespace) == ("https://outer", "other")
    assert decided(tmp_path, all_namespaces=True).namespace == ""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"networks": ()}, "--network: name the network"),
        ({"networks": ("10.0.0.1/8",)}, "--network 10.0.0.1/8"),
        ({"namespace": "ml", "all_namespaces": True}, "-n and -A exclude each other"),
        ({"all_namespaces": True, "secrets": ("*",)}, "any Secret of the cluster"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, said, words):
    """The sentence names the flags."""
    with pytest.raises(UserError, match=words):
        decided(tmp_path, **said)
