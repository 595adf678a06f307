"""Who may ask a router, and as whom."""

import json

import trio

from llmkube.router.config.routing_config import Auth
from router.proxy.router_lab import answer, config_of, local, open_lab


def keyed(folder, **changes):
    return config_of(local("mac"), auth=Auth(keys_folder=str(folder), **changes))


async def test_a_key_names_a_team_and_no_key_names_nobody(tmp_path):
    """Either header shows it; each line of a team's file counts; the audit log has the team and no key."""
    (tmp_path / "red").write_text("red-key-1\nred-key-2\n")
    (tmp_path / "blue").write_text("blue-key\n")
    async with open_lab(keyed(tmp_path), mac=answer()) as lab:
        for headers in (
            {},
            {"Authorization": "Bearer red-key-"},
            {"X-Api-Key": "blue"},
            {"Authorization": "Basic blue-key"},
        ):
            said = await lab.ask(headers=headers)
            assert (said.status, json.loads(said.body)["error"]["code"]) == (401, "invalid_api_key")
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


async def test_a_team_may_use_what_its_list_says(tmp_path):
    """403 for the rest, and it is not listed."""
    (tmp_path / "red").write_text("red-key\n")
    config = keyed(tmp_path, models_of_team={"red": ("small-*",)})
    headers = {"Authorization": "Bearer red-key"}
    async with open_lab(config, mac=answer()) as lab:
        assert (await lab.ask({"model": "small-1"}, headers=headers)).status == 200
        said = await lab.ask({"model": "large"}, headers=headers)
        listed = await lab.ask(path="/v1/models", method="GET", headers=headers)
    assert (said.status, json.loads(said.body)["error"]["code"]) == (403, "model_not_allowed")
    assert json.loads(listed.body)["data"] == []


async def test_a_key_that_is_taken_away_counts_no_more(tmp_path):
    """And a new one does, without a restart."""
    (tmp_path / "red").write_text("old-key\n")
    async with open_lab(keyed(tmp_path), mac=answer()) as lab:
        assert (await lab.ask(headers={"X-Api-Key": "old-key"})).status == 200
        (tmp_path / "red").write_text("another-key\n")
        await lab.router.live.look()
        assert (await lab.ask(headers={"X-Api-Key": "old-key"})).status == 401
        assert (await lab.ask(headers={"X-Api-Key": "another-key"})).status == 200


async def test_a_page_from_elsewhere_uses_no_router():
    """Pages of this machine may, and are told so before they ask."""
    async with open_lab(config_of(local("mac")), mac=answer()) as lab:
        assert (await lab.ask(headers={"Origin": "https://evil.example"})).status == 403
        near = await lab.ask(headers={"Origin": "http://localhost:3000"})
        assert (near.status, near.headers.get("access-control-allow-origin")) == (200, "http://localhost:3000")
    await trio.lowlevel.checkpoint()
