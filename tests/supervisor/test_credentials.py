"""API keys from Secrets, in simulated time: missing, created, rotated, and across restarts of the agent."""

import base64
from pathlib import Path

import attrs
import pytest
import trio

from llmkube.base.errors import ExternalError, UserError
from llmkube.base.http.egress import Egress
from llmkube.k8s.builtins import Secret
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ForbiddenError, NotFoundError, TransportError
from llmkube.programs.host_settings import download_settings
from llmkube.supervisor.credentials import SourceCredentials, TokenError, client_keys_of
from llmkube.weights.download.registry import RegistryAccess
from llmkube.weights.errors import SourceError
from llmkube.weights.ollama_model import AllowedModels
from llmkube.weights.source import parse_source
from sim.world import agent_settings, open_world


def model(secret=None):
    spec = {"source": "o/r"} | ({"sourceSecretRef": {"name": secret}} if secret is not None else {})
    return decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": spec})


def tokens(answer=None, file=None):
    """Tokens where reading a Secret returns this data, or raises this error."""

    async def read(key):
        await trio.lowlevel.checkpoint()
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await trio.sleep_forever()
        data = {name: base64.b64encode(value).decode() for name, value in answer.items()}
        return decode(Secret, {"metadata": {"name": key.name, "namespace": key.namespace}, "data": data})

    return SourceCredentials(read, file, trio.CapacityLimiter(1))


async def test_the_secret_comes_before_the_file(tmp_path):
    """A Model's own Secret has priority; else the file is read, each time; without both there is no token."""
    file = tmp_path / "token"
    file.write_text("hf_file\n")
    found = tokens({"HF_TOKEN": b" hf_secret\n"}, file)
    assert await found.find(model("hf")) == "hf_secret"
    assert await found.find(model()) == await found.find(model("")) == "hf_file"
    file.write_text("hf_rotated")
    assert await found.find(model()) == "hf_rotated"
    assert await tokens({}).find(model()) is None


async def test_the_login_of_a_registry_comes_from_the_secret_alone():
    """A Model's own docker-registry Secret has the login of its registry; another kind of Secret is an error."""
    source = parse_source("oci://r.io/phi")
    entry = b'{"auths":{"r.io":{"username":"ada","password":"hush"}}}'
    found = tokens({".dockerconfigjson": entry})
    assert await found.find_registry(model("reg"), source) == RegistryAccess("ada", "hush")
    assert await found.find_registry(model(), source) == RegistryAccess()
    assert await found.find_registry(model("reg"), parse_source("oci://other.io/phi")) == RegistryAccess()
    with pytest.raises(
        TokenError, match=r"has no key \.dockerconfigjson; create it with .kubectl create secret docker"
    ):
        await tokens({"HF_TOKEN": b"x"}).find_registry(model("hf"), source)
    with pytest.raises(SourceError, match="in Secret reg in namespace ns cannot be read"):
        await tokens({".dockerconfigjson": b"hush"}).find_registry(model("reg"), source)


async def test_the_keys_of_a_bucket_come_from_the_same_places():
    """A Model's own Secret has priority, with any of the variables; without one the agent's environment is used."""
    keys = {"AWS_ACCESS_KEY_ID": b"A\n", "AWS_SECRET_ACCESS_KEY": b"s", "AWS_REGION": b"eu-west-1", "other": b"\xff"}
    found = attrs.evolve(tokens(keys), environ={"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "t"})
    own = await found.find_access(model("minio"))
    assert (own.key_id, own.secret, own.region) == ("A", "s", "eu-west-1")
    assert (await found.find_access(model())).key_id == "E"
    with pytest.raises(SourceError, match="Secret hf in namespace ns has AWS_ACCESS_KEY_ID, but no"):
        await tokens({"AWS_ACCESS_KEY_ID": b"A"}).find_access(model("hf"))
    with pytest.raises(TokenError, match="Secret hf in namespace ns not found; create it with AWS_ACCESS_KEY_ID"):
        await tokens(NotFoundError("x", code=404)).find_access(model("hf"))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            NotFoundError("x", code=404),
            r"Secret hf in namespace ns not found; create it with HF_TOKEN.*kubectl -n ns create",
        ),
        (
            ForbiddenError("x", code=403),
            r"not read Secret hf in namespace ns; ask an administrator to run: llmkube agent join … --secret hf, or",
        ),
        ({}, r"Secret hf in namespace ns has no key HF_TOKEN \(it has nothing\)"),
        ({"a": b"1", "b": b"2"}, r"no key HF_TOKEN \(it has a, b\)"),
        ({"HF_TOKEN": b""}, "is not a token"),
        ({"HF_TOKEN": b"two words"}, "is not a token"),
        ({"HF_TOKEN": b"hf_x\r\nHost: evil"}, "is not a token"),
        ({"HF_TOKEN": "hf_ü".encode()}, "is not a token"),
    ],
)
async def test_an_invalid_secret(answer, says):
    """The message names Secret, namespace and error, and no content of the Secret."""
    with pytest.raises(TokenError, match=says) as caught:
        await tokens(answer).find(model("hf"))
    assert caught.value.field == "spec.sourceSecretRef"
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize("answer", [TransportError("connection refused"), None])
async def test_an_api_server_that_does_not_answer(answer, autojump_clock):
    """An API server that is away, or does not answer, is an environment error: it is retried."""
    with pytest.raises(ExternalError, match=r"spec\.sourceSecretRef: .*ns/hf"):
        await tokens(answer).find(model("hf"))


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff\xfe", b"x" * 5000])
async def test_an_invalid_token_file(tmp_path, content):
    """A token file that is missing or invalid is named, not shown."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        TokenError, match=f"--hf-token-file: {file} (cannot be read .No such file|does not contain a token)"
    ):
        await tokens(file=file).find(model())


class Config:
    allow_private_sources = ("192.168.0.0/16", "fd00::/8")
    allow_local_sources = None
    allow_ollama_sources = ("llama3.2", "*/*")
    s3_env_auth = False
    hf_token_file = None
    hub_endpoint = "https://hf-mirror.example/"

    def egress(self):
        return Egress()


def test_settings_are_read_before_anything_starts():
    """Networks and folders are parsed; an invalid folder or hub URL is refused by its flag."""
    found = download_settings(Config())
    assert [str(network) for network in found["private_sources"]] == ["192.168.0.0/16", "fd00::/8"]
    assert found["local_sources"] == ()
    assert download_settings(Config(), (Path("/home/me"),))["local_sources"] == (Path("/home/me"),)
    Config.allow_local_sources = ("~/models", "/srv/models")
    assert download_settings(Config())["local_sources"] == (Path("~/models").expanduser(), Path("/srv/models"))
    for text in ("models", "~no-such-user-of-ours/models"):
        Config.allow_local_sources = (text,)
        with pytest.raises(UserError, match=f"--allow-local-sources: '{text}'"):
            download_settings(Config())
    Config.allow_local_sources = ()
    assert download_settings(Config(), (Path("/home/me"),))["local_sources"] == ()
    assert found["ollama_sources"] == AllowedModels(("llama3.2", "*/*"))
    Config.allow_ollama_sources = ("ollama://llama3.2",)
    with pytest.raises(UserError, match=r"--allow-ollama-sources: 'ollama://llama3\.2' is not a model name"):
        download_settings(Config())
    Config.allow_ollama_sources = ()
    Config.hub_endpoint = "ftp://hub"
    with pytest.raises(UserError, match=r"--hub-endpoint: .*'ftp://hub' is not valid"):
        download_settings(Config())


REF = {"name": "chat-keys"}


async def put(world, text):
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys", "namespace": "default"}}
    data = {"api-key": base64.b64encode(text.encode()).decode()}
    await world.client.apply(Secret, body | {"data": data}, field_manager="user")


async def reason(world, kind="Loaded"):
    return (await world.condition(kind) or ("", ""))[1]


async def keys_of(world):
    await trio.lowlevel.checkpoint()
    return [child.api_keys[1:] for child in world.machine.live("chat")]


@pytest.mark.parametrize("insecure", [False, True])
async def test_a_service_waits_for_its_secret_and_is_published_without_a_proxy(autojump_clock, insecure):
    """Without the Secret nothing runs, and the condition has the command for it; with it, clients reach the engine."""
    async with open_world(settings=agent_settings(insecure_lan=insecure)) as world:
        await world.apply(apiKeySecretRef=REF)
        await world.until(reason, "APIKeysUnavailable", world, seconds=30)
        assert "create secret generic chat-keys --from-literal=api-key=" in (await world.condition())[2]
        assert not world.machine.spawned
        await put(world, "first\nsecond\n")
        await world.until(world.phase, "Ready", seconds=120)
        (child,) = world.machine.live("chat")
        assert child.api_keys[1:] == ("first", "second")
        assert child.api_keys[0]
        assert child.address[1] == child.port
        assert "--no-slots" in child.argv
        assert not {"first", "second"} & set(child.argv)


async def test_rotated_keys_are_taken_and_lost_ones_leave_the_engine(autojump_clock):
    """A minute after the Secret has changed, an engine has the new keys; without it, running engines continue."""
    async with open_world() as world:
        await put(world, "old")
        await world.apply(apiKeySecretRef=REF)
        await world.until(world.phase, "Ready", seconds=30)
        await put(world, "new\nold")
        await world.until(keys_of, [("new", "old")], world, seconds=120)
        await world.until(world.phase, "Ready", seconds=60)
        await put(world, "bad key")
        await world.until(reason, "APIKeysUnavailable", world, "UpToDate", seconds=120)
        assert await keys_of(world) == [("new", "old")]
        await put(world, "new")
        await world.until(keys_of, [("new",)], world, seconds=120)
        await world.until(reason, "UpToDate", world, "UpToDate", seconds=60)
        assert len(world.machine.spawned) == 3


async def test_the_next_agent_knows_which_keys_an_engine_has(autojump_clock):
    """After kill -9 the engine is adopted; without an API server it is started again with its keys."""
    async with open_world() as world:
        await put(world, "one")
        await world.apply(apiKeySecretRef=REF)
        await world.until(world.phase, "Ready", seconds=30)
        await world.kill_agent()
        await world.start_agent()
        await trio.sleep(120)
        assert len(world.machine.spawned) == 1
        await world.kill_agent()
        await put(world, "two")
        await world.start_agent()
        await world.until(keys_of, [("two",)], world, seconds=120)
        await world.kill_agent()
        world.faults.down = True
        await world.start_agent()
        world.machine.kill("chat")
        await world.until(keys_of, [("two",)], world, seconds=60)
        world.faults.down = False


async def test_a_forbidden_secret_names_the_command():
    """A host reads no Secret but those that it was joined with."""

    async def read(key):
        await trio.lowlevel.checkpoint()
        raise ForbiddenError("x", code=403)

    body = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m", "apiKeySecretRef": REF}}
    with pytest.raises(UserError, match=r"llmkube agent join … --secret chat-keys"):
        await client_keys_of(read, decode(InferenceService, body))
