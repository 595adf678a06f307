"""The control plane for tests survives what tests do to it, and leaves nothing behind."""

import datetime
import os
from pathlib import Path

import pytest
import trio

from envtest.plane import ControlPlane, open_control_plane
from envtest.programs import Program, ProgramError
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.client import open_client
from llmkube.k8s.codec import decode
from llmkube.k8s.errors import ForbiddenError, UnauthorizedError
from llmkube.k8s.resource import Key
from waiting import until

pytestmark = pytest.mark.envtest

NOTE = Key("default", "note")
SERVICE_ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


async def _write_note(plane: ControlPlane) -> None:
    async with open_client(load_config(plane.kubeconfig)) as client:
        await client.create(decode(ConfigMap, {"metadata": {"name": NOTE.name, "namespace": NOTE.namespace}}))


async def _may_read_note(kubeconfig: Path) -> bool:
    async with open_client(load_config(kubeconfig)) as client:
        try:
            await client.get(ConfigMap, NOTE)
        except ForbiddenError:
            return False
        return True


async def test_an_api_server_that_was_killed_comes_back_with_its_data(assets: Path, tmp_path: Path):
    """After SIGKILL, a start on the same port serves what was written before."""
    async with open_control_plane(assets, tmp_path / "plane") as plane:
        await _write_note(plane)
        await plane.api_server.kill()
        assert not plane.api_server.running
        await plane.start_api_server()
        assert await _may_read_note(plane.kubeconfig)
        pids = [each.pid for each in plane.programs]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_rbac_knows_users_and_tokens_apart(assets: Path, tmp_path: Path):
    """A user without groups and a ServiceAccount are authenticated without permissions; an expired token is not."""
    async with open_control_plane(assets, tmp_path / "plane") as plane:
        await _write_note(plane)
        assert not await _may_read_note(plane.write_kubeconfig(tmp_path / "user", user="somebody"))
        async with open_client(load_config(plane.kubeconfig)) as client:
            account = await client.request_json("POST", SERVICE_ACCOUNTS, body={"metadata": {"name": "agent"}})
        uid, now = account["metadata"]["uid"], datetime.datetime.now(datetime.UTC)
        fresh = plane.signer.token("default", "agent", uid, now=now, lifetime_seconds=60)
        assert not await _may_read_note(plane.write_token_kubeconfig(tmp_path / "fresh", fresh))
        stale = plane.signer.token("default", "agent", uid, now=now - datetime.timedelta(hours=1), lifetime_seconds=60)
        with pytest.raises(UnauthorizedError):
            await _may_read_note(plane.write_token_kubeconfig(tmp_path / "stale", stale))


async def test_a_program_that_dies_is_reported_with_its_last_output(assets: Path, tmp_path: Path):
    """A control plane that cannot start fails at once, and the error quotes the log."""
    with pytest.raises(ProgramError, match=r"(?s)kube-apiserver exited with status 1; .*unknown flag: --no-such-flag"):
        async with open_control_plane(assets, tmp_path / "plane", api_server_flags=["--no-such-flag"]):
            pytest.fail("it started")


async def test_a_program_that_ignores_term_is_killed(tmp_path: Path):
    """A stop ends after the grace whatever the program does, even when the caller is cancelled meanwhile."""
    deaf = Program("deaf", ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"), tmp_path / "deaf.log")
    await deaf.start()
    await until(lambda: deaf.log.read_bytes() == b"up\n")
    with trio.CancelScope() as scope:
        scope.cancel()
        await deaf.stop(grace_seconds=0.1)
    assert not deaf.running
