"""A join token is read back whole; what is none is refused in words that do not quote it."""

import base64
import datetime
import json

import attrs
import pytest

from cli.commands.programs.join_cluster import token_of
from llmkube.cli.commands.programs.host_identity import Identity
from llmkube.cli.commands.programs.join_token import (
    PREFIX,
    JoinToken,
    JoinTokenError,
    decode_join_token,
    encode_join_token,
)
from llmkube.k8s.auth.config import InlinePem, TlsSettings
from llmkube.supervisor.nouns.join_record import JoinRecord

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RECORD = JoinRecord(host="box", server="https://api:6443", networks=("10.0.0.0/8",), secrets=("hf",))
HOUR = token_of("llmkube-system", "llmkube-agent-box", issued=NOW.timestamp(), life=3600)
WHOLE = JoinToken(
    identity=Identity(record=RECORD, tls=TlsSettings(ca=InlinePem(b"pem"), server_name="api"), token=HOUR),
    allow_from=("10.1.0.0/16",),
)


def line_of(**changed):
    """The line with something else in it."""
    said = json.loads(base64.urlsafe_b64decode(encode_join_token(WHOLE).removeprefix(PREFIX) + "=="))
    for name, value in changed.items():
        if name in said["record"]:
            said["record"][name] = value
        else:
            said[name] = value
    return PREFIX + base64.urlsafe_b64encode(json.dumps(said).encode()).decode()


@pytest.mark.parametrize(
    "tls", [TlsSettings(), TlsSettings(ca=InlinePem(b"\xff")), TlsSettings(insecure=True), WHOLE.identity.tls]
)
def test_a_token_is_read_back(tls):
    """As it was made, on one line, whatever white space a terminal puts around it."""
    made = attrs.evolve(WHOLE, identity=attrs.evolve(WHOLE.identity, tls=tls))
    line = encode_join_token(made)
    assert line.split() == [line]
    assert decode_join_token(f"\n {line}\r\n", NOW) == made
    assert HOUR not in repr(made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no join token"),
        ("eyJhbGciOi", "there is no join token"),
        ("llmkube-join-v2.e30", "another version \\(llmkube-join-v2\\), and this llmkube reads llmkube-join-v1"),
        (PREFIX, "damaged or not complete"),
        (PREFIX + "e30", "damaged or not complete"),
        (PREFIX + "***", "damaged or not complete"),
        (encode_join_token(WHOLE)[:-40], "damaged or not complete"),
        (encode_join_token(WHOLE)[:60] + " " + encode_join_token(WHOLE)[60:], "damaged or not complete"),
        (line_of(host="Ann's Mac"), "damaged or not complete"),
        (line_of(host="mini"), "damaged or not complete"),
        (line_of(server="file:///x"), "damaged or not complete"),
        (line_of(lease_namespace="../x"), "damaged or not complete"),
        # what stands in it is printed as a command, which its owner pastes into a shell
        (line_of(namespace="x; touch pwned"), "damaged or not complete"),
        (line_of(networks=["$(touch pwned)"]), "damaged or not complete"),
        (line_of(secrets=["`touch pwned`"]), "damaged or not complete"),
        (line_of(server="https://api\x1b]0;title\x07"), "damaged or not complete"),
        (line_of(serverName="api\r\n"), "damaged or not complete"),
        (line_of(token=token_of("llmkube-system", "llmkube-agent-box", life=float("inf"))), "damaged or not complete"),
        (line_of(token=token_of("llmkube-system", "llmkube-agent-box", life=1e300)), "damaged or not complete"),
        (line_of(token="a b"), "damaged or not complete"),
        (line_of(allowFrom=[1]), "damaged or not complete"),
        (line_of(allowFrom=["everyone"]), "damaged or not complete"),
        (line_of(insecure="no"), "damaged or not complete"),
        (line_of(ca="*"), "damaged or not complete"),
    ],
)
def test_what_is_no_join_token_is_refused(text, said):
    """The sentence says what it is instead, and nothing that stands in it."""
    with pytest.raises(JoinTokenError, match=said) as caught:
        decode_join_token(text, NOW)
    assert caught.value.__cause__ is None
    assert len(text) <= len(PREFIX) + 3 or text[len(PREFIX) :][:20] not in str(caught.value)


def test_one_that_has_ended_is_told_with_its_end():
    """By this machine's clock, and with the command that makes another."""
    with pytest.raises(JoinTokenError, match=r"ended at 2026-01-01 01:00 UTC.*llmkube agent join-token --name box"):
        decode_join_token(encode_join_token(WHOLE), NOW + datetime.timedelta(hours=1))
