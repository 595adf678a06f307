"""Keys of Secrets in files."""

import stat

import pytest
import trio

from controller.cluster import open_cluster
from llmkube.k8s.builtins import Secret
from llmkube.programs.router_host.secret_files import read_secrets, remove_files, write_files
from llmkube.router.config.compile_backend import KeyFile


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "keys"


async def make(client, name, **entries):
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "ml"}, "stringData": entries}
    await client.apply(Secret, body, field_manager="user")


async def test_named_entries_are_read_and_no_others(folder):
    """Of a Secret with many entries a router gets the one that it names; a missing entry gives no file."""
    async with open_cluster() as cluster:
        await make(cluster.client, "openai", OPENAI_API_KEY="sk-1", other="x")
        await make(cluster.client, "clients", red="r-1\nr-2", blue="b-1")
        wanted = [
            KeyFile(path=str(folder / "backends/a"), secret="openai", key="OPENAI_API_KEY"),
            KeyFile(path=str(folder / "backends/b"), secret="openai", key="ANTHROPIC_API_KEY"),
            KeyFile(path=str(folder / "backends/c"), secret="gone", key="OPENAI_API_KEY"),
            KeyFile(path=str(folder / "teams"), secret="clients", key=""),
        ]
        assert await read_secrets(cluster.client, "ml", wanted) == {
            folder / "backends/a": b"sk-1",
            folder / "teams/red": b"r-1\nr-2",
            folder / "teams/blue": b"b-1",
        }


async def test_files_are_private_and_removed_with_their_secret(folder):
    """Mode 0600 in folders of 0700; a key that is no longer needed is removed."""
    write_files(folder, {folder / "backends/a": b"sk-1", folder / "backends/b": b"sk-2"}, [folder / "teams"])
    assert stat.S_IMODE((folder / "backends/a").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "backends").stat().st_mode) == 0o700
    assert (folder / "teams").is_dir()
    write_files(folder, {folder / "backends/a": b"sk-1"}, [])
    assert not (folder / "backends/b").exists()
    remove_files(folder)
    assert not folder.exists()


async def test_an_unchanged_key_is_not_written_again(folder):
    """A router reads a changed file again: an idle host causes no reads."""
    write_files(folder, {folder / "a": b"1"}, [])
    before = (folder / "a").stat()
    await trio.sleep(0.02)
    write_files(folder, {folder / "a": b"1"}, [])
    assert (folder / "a").stat().st_mtime_ns == before.st_mtime_ns
    write_files(folder, {folder / "a": b"2"}, [])
    assert (folder / "a").read_bytes() == b"2"
