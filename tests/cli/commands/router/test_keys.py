"""Keys are issued, listed and revoked in a Secret, which has their digests only."""

import contextlib
import json

import pytest

from cli.memory_cluster import NOW
from llmkube.base.errors import UserError
from llmkube.cli.commands.router.keys import expiry_of
from llmkube.k8s.builtins import Secret
from llmkube.k8s.client import Client
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.programs.router_host.secret_files import key_texts
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.issued_keys import parse_key_line, shown_time

PLACE = Key("default", "llmkube-keys")
DIGEST = "ab" * 32


@pytest.fixture
def on(run):
    """Run a command against a Secret; return the result and the Secret's entries afterwards."""

    def on(entries, *args):
        found = {}

        async def prepare(client):
            if entries:
                body = {"metadata": {"name": PLACE.name}, "stringData": entries}
                await client.request_json("POST", "/api/v1/namespaces/default/secrets", body=body)

        async def after(client):
            with contextlib.suppress(NotFoundError):
                found.update(key_texts(await client.get(Secret, PLACE)))

        return run("keys", *args, prepare=prepare, after=after), found

    return on


def test_an_issued_key_is_printed_once_and_stored_as_its_digest(on):
    """Standard output has the key alone; other keys of the Secret stay as they are."""
    done, entries = on(
        {"red": "plain-key"},
        "issue",
        "--for",
        "alice",
        "--team",
        "red",
        "--models",
        "phi-4,qwen-*",
        "--until",
        "2126-12-31",
    )
    assert done.exit_code == 0
    key = done.stdout.strip()
    assert key.startswith("llmk_")
    assert key not in done.stderr + entries["red"]
    assert "alice of team red may use phi-4, qwen-* until 2127-01-01T00:00:00Z" in " ".join(done.stderr.split())
    plain, record = entries["red"].splitlines()
    assert plain == "plain-key"
    found = parse_key_line(record)
    assert (found.digest, found.name, found.models) == (digest_of_key(key), "alice", ("phi-4", "qwen-*"))
    assert parse_key_line(found.line) == found


def test_the_first_key_creates_the_secret(on):
    done, entries = on({}, "issue", "--for", "ci")
    assert (done.exit_code, list(entries)) == (0, ["clients"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--for", "a b"), "--for: 'a b' is not a name"),
        (("--for", "x", "--team", "a b"), "--team: 'a b' is not a name"),
        (("--for", "x", "--models", "a,,b"), "--models: an empty pattern matches no model"),
        (("--for", "x", "--models", ""), "--models: an empty pattern matches no model"),
        (("--for", "x", "--until", "30"), "--until: '30' has no unit"),
        (("--for", "x", "--until", "2020-01-01"), "--until: 2020-01-01 is not a time in the future"),
        (("--for", "alice"), "alice has a key; revoke it first"),
    ],
)
def test_what_is_refused(on, args, message):
    """The message names the flag and the fix; nothing is written."""
    before = {"red": f"sha256:{DIGEST} for=alice\n"}
    done, entries = on(before, "issue", *args)
    assert done.exit_code != 0
    assert entries in ({}, before)  # {}: the command has not connected
    assert message in " ".join(done.stderr.split())


def test_an_expired_key_is_replaced(on):
    """Its holder gets another one, also in another team, without revoking it first."""
    before = {"red": f"k\nsha256:{DIGEST} for=bob until=2020-01-01T00:00:00Z\n"}
    done, entries = on(before, "issue", "--for", "bob", "--team", "blue")
    assert (done.exit_code, entries["red"]) == (0, "k\n")
    assert parse_key_line(entries["blue"].strip()).digest == digest_of_key(done.stdout.strip())


@pytest.mark.parametrize("before", [{}, {"red": "k"}])
def test_another_write_meanwhile_is_kept(on, before, monkeypatch):
    """The Secret is read again, whether the other writer has changed or created it."""
    name = "patch" if before else "create"
    write, others = getattr(Client, name), [{"blue": "b3RoZXI="}]

    async def write_second(self, *args, **more):
        if others:
            data = {"data": others.pop()}
            if before:
                await write(self, Secret, PLACE, data)
            else:
                path = "/api/v1/namespaces/default/secrets"
                await self.request_json("POST", path, body={"metadata": {"name": PLACE.name}, **data})
        return await write(self, *args, **more)

    monkeypatch.setattr(Client, name, write_second)
    done, entries = on(before, "issue", "--for", "alice")
    assert done.exit_code == 0
    assert entries.keys() == {"blue", "clients", *before}
    assert not others


def test_keys_are_listed_with_their_state(on):
    """A line that is a key itself has no holder, and is not shown."""
    text = f"plain-key\nsha256:{DIGEST} for=bob until=2020-01-01T00:00:00Z models=a\nsha256:12 for=x\n"
    done, _ = on({"red": text, "blue": f"sha256:{DIGEST[:-1]}0 for=carol\n"}, "list", "-o", "json")
    rows = [(one["for"], one["team"], one["models"], one["until"], one["state"]) for one in json.loads(done.stdout)]
    assert rows == [
        ("carol", "blue", [], "", "valid"),
        ("", "red", [], "", "plain key"),
        ("bob", "red", ["a"], "2020-01-01T00:00:00Z", "expired"),
        ("", "red", [], "", "invalid"),
    ]
    assert "plain-key" not in done.output
    assert on({}, "list")[0].exit_code == 0


def test_a_revoked_key_leaves_the_secret(on):
    """Others stay; the entry of a team without keys is removed."""
    before = {"red": f"k\nsha256:{DIGEST} for=bob\n", "blue": f"sha256:{DIGEST} for=bob\n"}
    done, entries = on(before, "revoke", "bob")
    assert (done.exit_code, entries) == (0, {"red": "k\n"})
    assert on(before, "revoke", "carol")[0].exit_code == 3


def test_a_date_is_valid_to_its_end():
    assert shown_time(expiry_of("2027-01-31", NOW)) == "2027-02-01T00:00:00Z"
    assert expiry_of("30d", NOW) == NOW.timestamp() + 30 * 86400
    with pytest.raises(UserError):
        expiry_of("soon", NOW)
