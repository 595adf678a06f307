"""Authentication of clients and their teams."""

import json

import attrs
import trio
import trio.testing
from prometheus_client import generate_latest

from http_lab import MemoryListener
from llmkube.router.auth import jwks_refresh
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.issued_keys import shown_time
from llmkube.router.auth.jwks_refresh import JwksRefresh
from llmkube.router.config.routing_config import Auth, Match, Rule
from router.auth.token_lab import TOKENS, jwk, jwks, token
from router.proxy.router_lab import DONE, MESSAGE, NOW, answer, chunk, config_of, local, open_lab, piece, stream

LAB_NOW = NOW.timestamp()
COUNTED = ("unauthorized", "no_token_keys")


def keyed(folder, **changes):
    return config_of(local("mac"), auth=Auth(keys_folder=str(folder), **changes))


async def test_a_key_identifies_a_team_and_a_missing_key_is_refused(tmp_path):
    """Either header carries the key; each line of a team's file is a key; the audit log has the team and no key."""
    (tmp_path / "red").write_text("red-key-1\nred-key-2\n")
    (tmp_path / "blue").write_text("blue-key\n")
    async with open_lab(keyed(tmp_path), mac=answer()) as lab:
        for headers in (
            {},
            {"Authorization": "Bearer red-key-"},
            {"X-Api-Key": "blue"},
            {"Authorization": "Basic blue-key"},
        ):
            response = await lab.ask(headers=headers)
            assert (response.status, json.loads(response.body)["error"]["code"]) == (401, "invalid_api_key")
            assert (await lab.ask(path="/v1/models", method="GET", headers=headers)).status == 401
        for headers in (
            {"Authorization": "Bearer red-key-2"},
            {"X-Api-Key": "blue-key"},
            {"authorization": "bearer red-key-1"},
        ):
            assert (await lab.ask(headers=headers)).status == 200
        assert (await lab.ask(path="/healthz", method="GET")).status == 200
    assert [line["team"] for line in lab.audit] == ["red", "blue", "red"]
    assert len({line["tenant"] for line in lab.audit}) == 3
    assert b"-key" not in b"".join(lab.lines)
    refused = {"rule": "none", "backend": "none", "classification": "none", "outcome": "unauthorized"}
    assert lab.metric("llmkube_router_requests_total", **refused) == 8


async def test_a_team_may_use_the_models_of_its_list(tmp_path):
    """Other models get 403 and are not listed."""
    (tmp_path / "red").write_text("red-key\n")
    config = keyed(tmp_path, models_of_team={"red": ("small-*",)})
    headers = {"Authorization": "Bearer red-key"}
    async with open_lab(config, mac=answer()) as lab:
        assert (await lab.ask({"model": "small-1"}, headers=headers)).status == 200
        response = await lab.ask({"model": "large"}, headers=headers)
        listed = await lab.ask(path="/v1/models", method="GET", headers=headers)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (403, "model_not_allowed")
    assert json.loads(listed.body)["data"] == []


async def test_a_removed_key_is_refused(tmp_path):
    """A new key is accepted without a restart."""
    (tmp_path / "red").write_text("old-key\n")
    async with open_lab(keyed(tmp_path), mac=answer()) as lab:
        assert (await lab.ask(headers={"X-Api-Key": "old-key"})).status == 200
        (tmp_path / "red").write_text("another-key\n")
        await lab.router.live.reload_if_changed()
        assert (await lab.ask(headers={"X-Api-Key": "old-key"})).status == 401
        assert (await lab.ask(headers={"X-Api-Key": "another-key"})).status == 200


async def test_an_issued_key_has_an_expiry_and_models(tmp_path):
    """Only its digest is in the file; an invalid line is ignored, and the audit log names the holder."""
    ended, later = (shown_time(LAB_NOW + seconds) for seconds in (0, 60))
    keys = {name: f"key-of-{name}" for name in ("ann", "bob", "eve")}
    digests = {name: digest_of_key(key).hex() for name, key in keys.items()}
    lines = [
        f"sha256:{digests['ann']} for=ann until={later} models=small-*,mac",
        f"sha256:{digests['bob']} for=bob until={ended}",
        f"sha256:{digests['eve']} for=eve until=tomorrow",
    ]
    (tmp_path / "red").write_text("\n".join(lines))
    ann = {"X-Api-Key": keys["ann"]}
    async with open_lab(keyed(tmp_path), mac=answer()) as lab:
        assert (await lab.ask({"model": "mac"}, headers=ann)).status == 200
        refused = await lab.ask({"model": "large"}, headers=ann)
        listed = await lab.ask(path="/v1/models", method="GET", headers=ann)
        expired = await lab.ask(headers={"X-Api-Key": keys["bob"]})
        for key in (keys["eve"], lines[0], f"sha256:{digests['ann']}", digests["ann"]):
            assert code_of(await lab.ask(headers={"X-Api-Key": key})) == (401, "invalid_api_key")
    assert code_of(refused) == (403, "model_not_allowed")
    assert "the key for ann may not use the model large, only small-*, mac" in refused.body.decode()
    assert code_of(expired) == (401, "key_expired")
    assert [each["id"] for each in json.loads(listed.body)["data"]] == ["mac"]
    assert {(line["team"], line["key"]) for line in lab.audit} == {("red", "ann")}
    kinds = ("prompt", "completion", "cached")
    tokens = [lab.metric("llmkube_router_team_tokens_total", team="red", kind=kind) for kind in kinds]
    assert tokens == [lab.metric("llmkube_router_tokens_total", backend="mac", kind=kind) for kind in kinds]


async def test_a_page_from_elsewhere_uses_no_router():
    """Pages of this machine are allowed, and the preflight tells them so."""
    async with open_lab(config_of(local("mac")), mac=answer()) as lab:
        assert (await lab.ask(headers={"Origin": "https://evil.example"})).status == 403
        near = await lab.ask(headers={"Origin": "http://localhost:3000"})
        assert (near.status, near.headers.get("access-control-allow-origin")) == (200, "http://localhost:3000")
    await trio.lowlevel.checkpoint()


def token_config(folder, **changes):
    (folder / "jwks.json").write_bytes(jwks("ed-1"))
    tokens = attrs.evolve(TOKENS, jwks_file=str(folder / "jwks.json"))
    return config_of(local("mac"), auth=Auth(tokens=tokens, **changes))


def bearer(shown):
    return {"Authorization": f"Bearer {shown}"}


def code_of(response):
    return response.status, json.loads(response.body)["error"]["code"]


async def test_a_token_names_a_team_and_goes_nowhere(tmp_path, capfd):
    """The token and its subject are in no backend request, audit log, metric or log line."""
    shown = token("ed-1", exp=LAB_NOW + 60, sub="subject-canary", team="red")
    refused = [token("ed-2", exp=LAB_NOW + 60), token("ed-1", exp=LAB_NOW - 60)]
    canaries = [part for each in (shown, *refused) for part in each.split(".")] + ["subject-canary"]
    async with open_lab(token_config(tmp_path), mac=answer()) as lab:
        for headers in (bearer(shown), {"X-Api-Key": shown}, bearer(shown) | {"X-LLMKube-Team": "blue"}):
            assert (await lab.ask(headers=headers)).status == 200
        answers = [await lab.ask(headers=bearer(each)) for each in refused]
        seen = repr(lab.players["mac"].asked) + generate_latest(lab.registry).decode() + b"".join(lab.lines).decode()
    seen += "".join(each.body.decode() + repr(list(each.headers)) for each in answers) + "".join(capfd.readouterr())
    assert [each for each in canaries if each in seen] == []
    assert {line["team"] for line in lab.audit} == {"red"}
    assert len({line["tenant"] for line in lab.audit}) == 1


async def test_a_client_without_a_valid_token_is_refused(tmp_path):
    """Only expiry is reported; any other failure is "not accepted", in the dialect of each path."""
    async with open_lab(token_config(tmp_path), mac=answer()) as lab:
        for shown, code, challenge in (
            ("a-key", "invalid_api_key", "Bearer"),
            (token("ed-2", exp=LAB_NOW + 60), "invalid_token", 'Bearer error="invalid_token"'),
            (token("ed-1", exp=LAB_NOW + 60, aud="chat"), "invalid_token", 'Bearer error="invalid_token"'),
            (
                token("ed-1", exp=LAB_NOW - 60),
                "token_expired",
                'Bearer error="invalid_token", error_description="The token expired"',
            ),
        ):
            response = await lab.ask(headers=bearer(shown))
            assert code_of(response) == (401, code)
            assert response.headers.get("www-authenticate") == challenge
        assert (await lab.ask()).status == 401
        assert (await lab.ask(MESSAGE, path="/v1/messages", headers=bearer("a.b.c"))).status == 401
        assert (await lab.ask(path="/healthz", method="GET")).status == 200
        assert lab.players["mac"].asked == []


async def test_keys_and_tokens_can_be_combined(tmp_path):
    """A team is the same with a key and with a token; its list of models applies to both."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "red").write_text("red-key\nodd.key.2\n")
    config = token_config(tmp_path, keys_folder=str(tmp_path / "keys"), models_of_team={"red": ("mac",)})
    async with open_lab(config, mac=answer()) as lab:
        for shown in ("red-key", "odd.key.2", token("ed-1", exp=LAB_NOW + 60)):
            assert (await lab.ask({"model": "mac"}, headers=bearer(shown))).status == 200
            assert code_of(await lab.ask({"model": "large"}, headers=bearer(shown))) == (403, "model_not_allowed")
        stranger = token("ed-1", exp=LAB_NOW + 60, team="green")
        assert (await lab.ask({"model": "mac"}, headers=bearer(stranger))).status == 403
        assert {line["team"] for line in lab.audit} == {"red", "green"}


async def test_rules_use_the_team_of_the_token_and_not_of_a_client_header(tmp_path):
    """A client cannot reach a rule for a team by sending the team's header."""
    config = token_config(tmp_path)
    rule = Rule(name="red", match=Match(headers={"x-llmkube-team": "red"}), backends=("mac",))
    config = attrs.evolve(config, rules=(rule,))
    async with open_lab(config, mac=answer()) as lab:
        claimed_team = {"X-LLMKube-Team": "red"}
        assert (await lab.ask(headers=bearer(token(exp=LAB_NOW + 60)))).status == 200
        assert (await lab.ask(headers=bearer(token(exp=LAB_NOW + 60, team="blue")) | claimed_team)).status == 404


async def test_rotated_keys_are_used_while_the_router_runs(tmp_path):
    """A running request continues; without keys the router returns 503 with the reason, and accepts no token."""
    goes_on = trio.Event()

    async def slow(connection):
        await connection.send_all(stream(piece("one"), end=b""))
        await goes_on.wait()
        await connection.send_all(chunk(piece("", "stop") + DONE) + b"0\r\n\r\n")

    old, new = token("ed-1", exp=LAB_NOW + 60), token("ed-3", exp=LAB_NOW + 60)
    refresh = []
    async with open_lab(token_config(tmp_path), mac=(slow, answer())) as lab, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: kept(refresh, lab.read(headers=bearer(old))))
        await trio.testing.wait_all_tasks_blocked()
        (tmp_path / "jwks.json").write_bytes(jwks("ed-3"))
        await JwksRefresh(lab.router.live.token_keys, None).refresh_if_due()
        assert code_of(await lab.ask(headers=bearer(old))) == (401, "invalid_token")
        assert (await lab.ask(headers=bearer(new))).status == 200
        goes_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (refresh[0][0], refresh[0][2]) == (200, True)
        (tmp_path / "jwks.json").write_bytes(b'{"keys": []}')
        await JwksRefresh(lab.router.live.token_keys, None).refresh_if_due()
        response = await lab.ask(headers=bearer(new))
        assert (code_of(response), response.headers.get("retry-after")) == ((503, "no_token_keys"), "5")
        assert (await lab.ask()).status == 401
        labels = {"rule": "none", "backend": "none", "classification": "none"}
        counted = [lab.metric("llmkube_router_requests_total", **labels, outcome=each) for each in COUNTED]
        assert counted == [2, 1]
        ready = await lab.ask(path="/readyz", method="GET")
        assert (ready.status, "no key among them" in json.loads(ready.body)["reason"]) == (503, True)


async def kept(into, asked):
    into.append(await asked)


async def test_another_config_keeps_the_keys_and_requires_its_own_claims(tmp_path):
    """A token for an audience that is no longer configured is refused at the first request."""
    shown = token("ed-1", exp=LAB_NOW + 60)
    async with open_lab(token_config(tmp_path), mac=answer()) as lab:
        assert (await lab.ask(headers=bearer(shown))).status == 200
        tokens = attrs.evolve(lab.config.auth.tokens, audiences=("chat",))
        lab.config, lab.stamp = attrs.evolve(lab.config, auth=Auth(tokens=tokens)), (2, 0, 0)
        await lab.router.live.reload_if_changed()
        assert code_of(await lab.ask(headers=bearer(shown))) == (401, "invalid_token")
        assert (await lab.ask(headers=bearer(token("ed-1", exp=LAB_NOW + 60, aud="chat")))).status == 200


async def test_keys_are_fetched_from_the_issuer(autojump_clock, monkeypatch):
    """Without keys the answer is 503; a token with an unknown key triggers a fetch, and is sent again."""
    key = {"keys": [jwk("ed-1")]}

    async def parsed(data, limiter):  # an autojump clock does not wait for threads
        await trio.lowlevel.checkpoint()
        return jwks_refresh.load_key_set(data)

    monkeypatch.setattr(jwks_refresh, "parsed", parsed)
    tokens = attrs.evolve(TOKENS, jwks_file="", jwks_uri="http://issuer.svc/keys")
    config = config_of(local("mac"), auth=Auth(tokens=tokens))
    first, second = (token(name, exp=LAB_NOW + 60) for name in ("ed-1", "ed-2"))
    issuer = Issuer([b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n", answer(body=key)])

    async def dial(host, port):
        return await (issuer.listener if host == "issuer.svc" else lab.players["mac"].listener).connect(host, port)

    async with trio.open_nursery() as nursery, open_lab(config, connect=dial, mac=answer()) as lab:
        assert code_of(await lab.ask(headers=bearer(first))) == (503, "no_token_keys")
        nursery.start_soon(issuer.run)
        await trio.sleep(3)
        assert (await lab.ask(headers=bearer(first))).status == 200
        await trio.sleep(31)
        issuer.answers.append(answer(body={"keys": [jwk("ed-2")]}))
        response = await lab.ask(headers=bearer(second))
        assert (code_of(response), response.headers.get("retry-after")) == ((503, "token_keys_coming"), "2")
        await trio.sleep(2)
        assert (await lab.ask(headers=bearer(second))).status == 200
        assert code_of(await lab.ask(headers=bearer(first))) == (401, "invalid_token")
        assert len(issuer.heads) == 3
        assert not any("authorization" in each.lower() for each in issuer.heads)
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Issuer:
    """An issuer that returns each of these answers once."""

    answers: list
    heads: list = attrs.field(factory=list)
    listener: MemoryListener = attrs.field(factory=MemoryListener)

    async def run(self):
        while True:
            connection = await self.listener.accept()
            async with connection:
                self.heads.append((await connection.receive_some()).decode())
                await connection.send_all(self.answers[len(self.heads) - 1])
