"""A host's join record is read back whole, or not at all."""

import json
import shlex

import attrs
import pytest

from llmkube.supervisor.values.join_record import (
    JoinRecord,
    encode_record,
    read_record,
    record_path,
    token_path,
    token_paths,
)

RECORD = JoinRecord(host="box", server="https://api:6443", namespace="ml", networks=("10.0.0.0/8",), secrets=("*", "a"))


def test_a_record_is_read_back(tmp_path):
    """Field by field, next to its token."""
    token = token_path(tmp_path, RECORD, b"ca")
    record_path(token).write_text(encode_record(RECORD))
    assert read_record(token) == RECORD


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "{", json.dumps({"host": "box"})])
def test_an_invalid_record_is_none(tmp_path, text):
    """An unreadable record is ignored, and so is one with a wrong type in place of a text."""
    token = token_path(tmp_path, RECORD, b"")
    assert read_record(token) is None
    record_path(token).write_text(text)
    assert read_record(token) is None
    record_path(token).write_text(encode_record(RECORD).replace('"a"', "1"))
    assert read_record(token) is None
    record_path(token).write_text(encode_record(RECORD).replace("false", "0"))
    assert read_record(token) is None


def test_the_command_grants_the_same_again(tmp_path):
    """Word for word, quoted for a shell, with all namespaces as such."""
    words = shlex.split(RECORD.command(tmp_path))
    assert (
        words
        == (
            f"llmkube agent join --name box --network 10.0.0.0/8 --namespace ml --secret * --secret a "
            f"--server https://api:6443 --state-dir {tmp_path}"
        ).split()
    )
    two = attrs.evolve(RECORD, by_token=True).command(tmp_path)
    assert two.startswith("llmkube agent join-token --name box --network 10.0.0.0/8 --namespace ml --secret '*'")
    assert two.endswith(
        f"on this host, with the printed line as input: llmkube agent join --token-file - --state-dir {tmp_path}"
    )
    everywhere = JoinRecord(host="box", server="https://x").command(tmp_path)
    assert "--all-namespaces" in everywhere
    assert "--namespace" not in everywhere.replace("--all-namespaces", "")


def test_identities_have_tokens_of_their_own(tmp_path):
    """Another URL, authority, account name or namespace is another file; the granted rights are not part of it."""
    changes = ({}, {"server": "https://b"}, {"host": "mini"}, {"lease_namespace": "hosts"})
    paths = {token_path(tmp_path, attrs.evolve(RECORD, **each), b"") for each in changes}
    paths.add(token_path(tmp_path, RECORD, b"ca"))
    assert len(paths) == 5
    assert token_path(tmp_path, attrs.evolve(RECORD, secrets=(), networks=(), namespace=""), b"") in paths
    for each in paths:
        each.touch()
    (tmp_path / "host-x.token").touch()
    (tmp_path / "host-name").touch()
    assert token_paths(tmp_path) == paths
