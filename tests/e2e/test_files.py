"""Findings S8 and S14, reproduced.

Models name files of the host, and a reader of all objects looks for their content; a second Unix user makes a state
directory for root.
"""

import hashlib
import json
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest

from e2e.addresses import own_address
from e2e.one_machine import open_up_with, served
from e2e.separate_programs import eventually, open_cluster
from e2e.up_process import open_program
from llmkube.cli.commands.tools.files import load_manifests
from llmkube.k8s.builtins import Event
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.programs.server_side_apply import Applier
from second_user import OTHER_UID, needs_second_user, open_common_folder, run_as_other

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

GOOD = files("llmkube.weights").joinpath("builtin/demo.gguf").read_bytes()


async def fetched(client, name, *reasons):
    """Return the Model's condition `Fetched` once it has one of the reasons."""

    async def read():
        conditions = (await client.get(Model, Key("default", name))).status.conditions
        return next((each for each in conditions if each.type == "Fetched"), None)

    return await eventually(read, lambda found: found is not None and found.reason in reasons)


async def apply(client, folder, sources):
    """Apply a Model with a wrong digest, and its service, for each source."""
    file = folder / "sources.yaml"
    texts = (served(*each).replace("source:", f"sha256: {'a' * 64}\n  source:") for each in sources.items())
    file.write_text("\n---\n".join(texts))
    applied = await Applier(client).apply_all(load_manifests((str(file),), lambda: ""), lambda _: None)
    assert not any(each.error for each in applied), applied


async def everything(client):
    """Return all that a reader of Models, services and Events sees, as text."""
    found = [each for kind in (Model, InferenceService, Event) for each in (await client.list(kind)).items]
    return json.dumps([encode(each) for each in found])


async def test_s8_an_agent_without_a_list_reveals_nothing_about_files(tmp_path):
    """Secret, missing, unreadable and good files, by path, URL and link, are refused in the same sentence."""
    secret = tmp_path / "secret.gguf"
    secret.write_bytes(GOOD)
    (tmp_path / "text").write_text("root:$y$j9T$secret")
    (tmp_path / "link").symlink_to(tmp_path / "text")
    paths = {
        "shadow": "/etc/shadow",
        "text": f"{tmp_path}/text",
        "missing": f"{tmp_path}/missing",
        "link": f"{tmp_path}/link",
        "folder": f"{tmp_path}",
        "good": f"{secret}",
    }
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(own_address()) as agent:
        await apply(cluster.client, tmp_path, {**paths, "url": f"file://{tmp_path}/text"})
        messages = set()
        for name, path in {**paths, "url": f"{tmp_path}/text"}.items():
            condition = await fetched(cluster.client, name, "SourceNotAllowed")
            messages.add(condition.message.replace(path, "PATH"))
        (sentence,) = messages
        assert "--allow-local-sources" in sentence
        seen = await everything(cluster.client)
    for content in (GOOD, (tmp_path / "text").read_bytes(), Path("/etc/passwd").read_bytes()):
        assert hashlib.sha256(content).hexdigest() not in seen + agent.err
    assert "root:" not in seen + agent.err


async def test_s8_a_listed_folder_serves_its_models_and_reveals_nothing_else(tmp_path):
    """A GGUF in the folder is served; a text file looks missing, and a link out of the folder is refused."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "good.gguf").write_bytes(GOOD)
    (models / "text").write_text("root:$y$j9T$secret")
    (models / "link").symlink_to("/etc/passwd")
    flags = ("--allow-local-sources", str(models))
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(own_address(), *flags) as agent:
        names = ("good.gguf", "text", "missing", "link")
        await apply(cluster.client, tmp_path, {name.partition(".")[0]: f"{models}/{name}" for name in names})
        condition_of = partial(fetched, cluster.client)
        assert "aaaa" not in (await condition_of("good", "DigestMismatch")).message
        text, missing = await condition_of("text", "FileNotFound"), await condition_of("missing", "FileNotFound")
        assert text.message.replace("/text", "/missing") == missing.message
        await condition_of("link", "SourceNotAllowed")
        seen = await everything(cluster.client)
        for content in (GOOD, (models / "text").read_bytes(), Path("/etc/passwd").read_bytes()):
            assert hashlib.sha256(content).hexdigest() not in seen
        assert "is not a GGUF file" in agent.err  # the owner's log has the details
        spec = {"sha256": hashlib.sha256(GOOD).hexdigest()}
        await cluster.client.patch(Model, Key("default", "good"), {"spec": spec})
        await condition_of("good", "Fetched")


async def test_s8_up_serves_what_its_user_has_and_nothing_else(tmp_path):
    """Without a list, Models may name files in the home of the user who runs `up`, but not in /etc."""
    (tmp_path / "mine.gguf").write_bytes(GOOD)
    documents = [served("mine", f"{tmp_path}/mine.gguf"), served("passwd", "/etc/passwd"), served("none", "/etc/none")]
    async with open_up_with(tmp_path, documents=documents) as up:  # its HOME is tmp_path
        await up.wait_loaded("mine", "Loaded")
        first = await up.wait_loaded("passwd", "SourceNotAllowed")
        second = await up.wait_loaded("none", "SourceNotAllowed")
        assert first.message.replace("/etc/passwd", "/etc/none") == second.message


@needs_second_user
@pytest.mark.parametrize("args", [("up",), ("agent",), ("agent", "stop"), ("apiserver",), ("list",), ("logs", "x")])
async def test_s14_root_does_not_take_another_users_state_directory(tmp_path, args):
    """A second user makes a state directory whose config.toml names a program: root does not use it."""
    with open_common_folder() as base:
        base.chmod(0o1777)
        evil, state = base / "evil", base / "state"
        run_as_other(
            'mkdir -p "$1/ca" && printf "#!/bin/sh\ntouch $2.ran\n" > "$2" && chmod 755 "$2" && '
            'printf "llama_server = \\"$2\\"\n" > "$1/config.toml" && printf 1 > "$1/lock" && '
            'printf "apiVersion: v1\nusers: [{name: a, user: {exec: {command: $2}}}]\n" > "$1/kubeconfig"',
            state,
            evil,
        )
        flags = ("--state-dir", str(state)) if args != ("list",) else ()
        variable = ("env", f"LLMKUBE_STATE_DIR={state}")
        async with open_program(tmp_path, *args, *flags, prefix=variable) as program:
            assert await program.process.wait() != 0
        refusal = f"the state directory {state} is not safe to use: it belongs to another user (uid {OTHER_UID})"
        assert refusal in program.err
        assert not Path(f"{evil}.ran").exists()
        assert not (state / "api.db").exists()
