from pathlib import Path

import pytest
import yaml

from cli.memory_cluster import announce
from llmkube.cli.commands.services import deploy as deploy_module
from llmkube.cli.commands.services.deploy import absolute_source, choose_accelerator
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import LOAD_REQUESTED_AT

CHAT = Key("default", "chat")
BASE = ("deploy", "chat", "--source", "builtin://demo", "--no-wait")


@pytest.fixture
def deploy(run):
    """Deploy into an empty cluster; return the result and the objects afterwards."""

    def deploy(*args, **kwargs):
        found = {}

        async def collect(client):
            for kind in (Model, InferenceService):
                for each in (await client.list(kind)).items:
                    found[kind.RESOURCE.kind, str(each.key)] = each

        done = run(*args, demo=False, after=collect, **kwargs)
        return done, found

    return deploy


def test_both_objects_are_created(deploy):
    """Both objects have the name, and exactly the given settings."""
    flags = ("--context-size", "512", "--no-flash-attention", "--extra-arg=--mlock", "--env", "A=b=c")
    flags += (
        "--parallel",
        "2",
        "--sha256",
        "ab" * 32,
        "--secret",
        "hub",
        "--memory-budget",
        "24Gi",
        "--accelerator",
        "cpu",
    )
    done, found = deploy(*BASE, *flags)
    assert done.exit_code == 0, done.output
    assert done.output == "Model default/chat created\nInferenceService default/chat created\n"
    model, service = found["Model", "default/chat"].spec, found["InferenceService", "default/chat"].spec
    assert (model.source, model.sha256, model.source_secret_ref.name) == ("builtin://demo", "ab" * 32, "hub")
    assert (model.hardware.accelerator, model.hardware.memory_budget) == ("cpu", "24Gi")
    assert (service.model_ref, service.context_size, service.parallel_slots) == ("chat", 512, 2)
    assert (service.flash_attention, service.extra_args) == (False, ("--mlock",))
    assert [(each.name, each.value) for each in service.env] == [("A", "b=c")]


@pytest.mark.parametrize(("text", "key"), [("chat-keys", "api-key"), ("chat-keys/keys.txt", "keys.txt")])
def test_clients_get_keys_from_a_secret(deploy, text, key):
    """The service names the Secret; the default key is the schema's."""
    done, found = deploy(*BASE, "--api-key-secret", text)
    assert done.exit_code == 0, done.output
    ref = found["InferenceService", "default/chat"].spec.api_key_secret_ref
    assert (ref.name, ref.key) == ("chat-keys", key)


@pytest.mark.parametrize("text", ["", "/k", "a/", "a/b/c"])
def test_invalid_secret_name_is_a_usage_error(deploy, text):
    """Nothing is applied; an empty name does not mean that there are no keys."""
    done, found = deploy(*BASE, "--api-key-secret", text)
    assert (done.exit_code, found) == (2, {})
    assert "is not NAME or NAME/KEY" in done.output


def test_the_same_again_changes_nothing(deploy):
    """The same flags report `unchanged`; omitting a flag removes its setting."""
    before = []

    async def earlier(client):
        request = deploy_module.read_request("chat", flags_of(context_size=512), Path.cwd())
        for kind, manifest in zip(request.kinds, request.manifests("default", {"cpu"}), strict=True):
            before.append(await client.apply(kind, manifest, field_manager=deploy_module.FIELD_MANAGER))

    same = (*BASE, "--context-size", "512", "--accelerator", "cpu")
    done, found = deploy(*same, prepare=earlier)
    assert done.output == "Model default/chat unchanged\nInferenceService default/chat unchanged\n"
    assert found["Model", "default/chat"].metadata.uid == before[0].metadata.uid
    typed = (*BASE, "--context", "512", "--accelerator", "cpu")  # a number is no context of a kubeconfig
    assert deploy(*typed, prepare=earlier)[0].output == done.output
    done, found = deploy(*BASE, "--accelerator", "cpu", prepare=earlier)
    assert done.output == "Model default/chat unchanged\nInferenceService default/chat configured\n"
    assert found["InferenceService", "default/chat"].spec.context_size is None


@pytest.mark.parametrize("mode", ["OnRequest", "Always"])
@pytest.mark.parametrize("phase", ["Idle", "Failed", "Ready"])
def test_a_model_that_is_not_loaded_is_loaded_once(deploy, phase, mode):
    """The command would not show the errors of a load that waits for the first request, or for a back-off."""

    async def earlier(client):
        request = deploy_module.read_request("chat", flags_of(), Path.cwd())
        for kind, manifest in zip(request.kinds, request.manifests("default", {"cpu"}), strict=True):
            manifest["metadata"]["annotations"] = {LOAD_REQUESTED_AT: "earlier"}
            await client.apply(kind, manifest, field_manager=deploy_module.FIELD_MANAGER)
        body = {"status": {"activation": mode, "phase": phase}}
        await client.patch(InferenceService, CHAT, body, subresource="status")

    _, found = deploy(*BASE, "--accelerator", "cpu", prepare=earlier)
    requested = found["InferenceService", "default/chat"].metadata.annotations[LOAD_REQUESTED_AT]
    assert (requested == "earlier") == (phase == "Ready")


def test_scaled_replicas_are_kept(deploy):
    """Without --replicas the value of `scale` or an autoscaler is kept."""

    async def earlier(client):
        request = deploy_module.read_request("chat", flags_of(), Path.cwd())
        for kind, manifest in zip(request.kinds, request.manifests("default", {"cpu"}), strict=True):
            await client.apply(kind, manifest, field_manager=deploy_module.FIELD_MANAGER)
        await client.patch(InferenceService, CHAT, {"spec": {"replicas": 0}}, field_manager="llmkube-scale")

    done, found = deploy(*BASE, "--accelerator", "cpu", prepare=earlier)
    assert done.output.endswith("InferenceService default/chat unchanged\n")
    assert found["InferenceService", "default/chat"].spec.replicas == 0


def test_a_refused_service_leaves_no_model_behind(deploy):
    """If the API server refuses either object, nothing is created, and the error names the field."""
    done, found = deploy(*BASE, "--accelerator", "cpu", "--image", "")
    assert (done.exit_code, "spec.image" in done.output) == (1, True), done.output
    assert found == {}
    missing, found = deploy(*BASE, "--accelerator", "cpu", "-n", "nowhere")
    assert (missing.exit_code, found) == (3, {})
    assert 'namespaces "nowhere" not found' in missing.output


def test_a_model_that_exists_can_be_served(deploy):
    """--model creates a service only, and excludes flags of the Model."""
    done, found = deploy("deploy", "chat", "--model", "other", "--no-wait")
    assert done.output == "InferenceService default/chat created\n"
    assert found["InferenceService", "default/chat"].spec.model_ref == "other"
    refused, found = deploy("deploy", "chat", "--model", "other", "--memory-fraction", "0.5")
    assert (refused.exit_code, found) == (2, {})
    assert "--memory-fraction is a setting of the Model, which --model other does not change" in refused.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["deploy", "chat"], "specify --source (weights to serve) or --model"),
        (["deploy", "chat", "--source", "x://y"], "Invalid value for --source: 'x://y' has the unknown scheme 'x'"),
        ([*BASE, "--context-size", "64"], "'--context-size': 64 is not in the range 128<=x<=2097152"),
        ([*BASE, "--memory", "5GB"], '"5GB" is not a quantity; write a number and a unit, such as 24Gi'),
        ([*BASE, "--sha256", "12"], '"12" is not 64 hexadecimal digits'),
        ([*BASE, "--env", "A"], 'Invalid value for --env: "A" is not NAME=VALUE'),
        (
            ["deploy", "Foo_Bar", "--source", "builtin://demo"],
            '"Foo_Bar" is not a valid name; use lower-case letters, digits, - and ., such as foo-bar',
        ),
        ([*BASE, "--gpu", "--accelerator", "cpu"], "--gpu and --accelerator cpu exclude each other"),
        ([*BASE, "--cache-type-k", "f17"], "'f17' is not one of 'f16'"),
        ([*BASE, "--timeout", "nan"], "Invalid value for '--timeout': 'nan' is not a number"),
        ([*BASE, "--memory-fraction", "NaN"], "Invalid value for '--memory-fraction': 'NaN' is not a number"),
    ],
)
def test_wrong_flags_are_usage_errors(deploy, args, words):
    """Each error names flag, value and a valid form, before any request."""
    done, found = deploy(*args)
    assert (done.exit_code, words in done.output) == (2, True), done.output
    assert found == {}


def test_a_dry_run_writes_nothing(deploy):
    """--dry-run prints both objects as YAML that can be applied, and creates neither."""
    done, found = deploy(*BASE, "--gpu", "--gpu-layers", "20", "--dry-run")
    model, service = yaml.safe_load_all(done.output)
    gpu = {"enabled": True, "vendor": "nvidia", "count": 1, "layers": 20}
    assert model["spec"] == {"source": "builtin://demo", "hardware": {"accelerator": "cuda", "gpu": gpu}}
    assert (service["kind"], service["spec"]) == ("InferenceService", {"modelRef": "chat"})
    assert found == {}


def test_a_projector_and_a_draft_model(deploy):
    """A file becomes a Model of its own; a name is that of an existing one."""
    _, found = deploy(*BASE, "--mmproj", "none", "--draft", "/models/small.gguf")
    assert found["Model", "default/chat"].spec.mmproj == "none"
    assert found["Model", "default/chat-draft"].spec.source == "/models/small.gguf"
    assert found["InferenceService", "default/chat"].spec.speculative_decoding.draft_model_ref == "chat-draft"
    _, found = deploy(*BASE, "--draft", "small")
    assert found["InferenceService", "default/chat"].spec.speculative_decoding.draft_model_ref == "small"


def test_the_accelerator_is_what_live_hosts_serve(deploy):
    """Without --accelerator a current Lease decides; an expired one does not."""

    async def live(client):
        await announce(client, "cpu", "metal")

    async def dead(client):
        await announce(client, "rocm", age_seconds=3600)

    _, found = deploy(*BASE, prepare=live)
    assert found["Model", "default/chat"].spec.hardware.accelerator == "metal"
    _, found = deploy(*BASE, prepare=dead)
    assert found["Model", "default/chat"].spec.hardware.accelerator in {"cpu", "metal"}


@pytest.mark.parametrize(
    ("served", "gpu", "platform", "chosen"),
    [
        ({"cpu"}, False, "darwin", "cpu"),
        ({"cpu", "metal"}, False, "linux", "metal"),
        ({"cpu", "rocm", "cuda"}, False, "linux", "cuda"),
        (set(), False, "darwin", "metal"),
        (set(), False, "linux", "cpu"),
        ({"cpu"}, True, "linux", "cuda"),
        ({"vulkan"}, True, "linux", "vulkan"),
    ],
)
def test_the_best_accelerator_is_chosen(served, gpu, platform, chosen):
    """Live hosts come first, a GPU before the CPU; without hosts this machine's own is used."""
    assert choose_accelerator(served, gpu=gpu, platform=platform) == chosen


def test_runtime_of_pods_ignores_hosts():
    """`--runtime generic` next to a Mac chooses a node's CPU, with --gpu its GPU; llamacpp uses the Mac."""
    assert choose_accelerator({"metal"}, gpu=False, in_pods=True) == "cpu"
    assert choose_accelerator({"metal"}, gpu=True, in_pods=True) == "cuda"
    assert "generic" in deploy_module._POD_RUNTIMES
    assert "llamacpp" not in deploy_module._POD_RUNTIMES


def test_an_engine_of_the_hosts_owner(deploy):
    """`--engine` implies the runtime and, without a GGUF file, the format; the accelerator is that of a live host."""

    async def mac(client):
        await announce(client, "metal")

    flags = ("--engine", "speech", "--engine-option", "beam=1e-20", "--engine-option", "lang=a=b")
    done, found = deploy("deploy", "asr", "--source", "/models/en-us", *flags, "--no-wait", prepare=mac)
    assert done.exit_code == 0, done.output
    model, service = found["Model", "default/asr"].spec, found["InferenceService", "default/asr"].spec
    assert (model.format, model.hardware.accelerator, service.runtime) == ("custom", "metal", "generic")
    assert (service.engine.name, service.engine.options) == ("speech", {"beam": "1e-20", "lang": "a=b"})
    for source, given, expected in (("/m.gguf", (), "gguf"), ("/m", ("--format", "mlx"), "mlx")):
        _, found = deploy("deploy", "asr", "--source", source, "--engine", "own", *given, "--no-wait")
        assert found["Model", "default/asr"].spec.format == expected


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--engine-option", "beam=1"), "--engine-option needs --engine"),
        (("--engine", "speech", "--engine-option", "beam"), '"beam" is not NAME=VALUE'),
        (("--engine", "speech", "--runtime", "ollama"), "--engine needs the runtime generic, not ollama"),
        (("--engine", "a/b"), '"a/b" is not a name of letters, digits, - and _'),
    ],
)
def test_an_engine_that_cannot_be_named(deploy, flags, problem):
    done, _ = deploy(*BASE, *flags)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


def test_a_path_may_have_spaces(deploy, tmp_path):
    file = tmp_path / "Application Support" / "my model.gguf"
    file.parent.mkdir()
    file.touch()
    done, found = deploy("deploy", "chat", "--source", str(file), "--no-wait", "--accelerator", "cpu")
    assert done.exit_code == 0, done.output
    assert found["Model", "default/chat"].spec.source == str(file)


def test_paths_become_absolute(tmp_path):
    """Paths and local files become absolute; repositories and URLs stay."""
    (tmp_path / "m.gguf").touch()
    for text in ("./m.gguf", "m.gguf", "x/../m.gguf" if (tmp_path / "x").mkdir() is None else ""):
        assert absolute_source(text, tmp_path) == f"{tmp_path}/m.gguf"
    for text in ("org/repo", "/models/m.gguf", "https://example.org/m.gguf", "org/repo@main"):
        assert absolute_source(text, tmp_path) == text
    assert absolute_source("~/m.gguf", tmp_path).endswith("/m.gguf")
    assert "~" not in absolute_source("~/m.gguf", tmp_path)


def flags_of(**given):
    """Return click's parameters for `--source builtin://demo --accelerator cpu` and the given flags."""
    flags = {field.parameter: None for field in deploy_module.FLAGS}
    flags |= {"source": "builtin://demo", "model_name": None, "accelerator": "cpu", "gpu": False, "env": ()}
    flags |= {"api_key_secret": None, "lora": (), "draft": None, "engine_option": ()}
    return flags | given


@pytest.mark.parametrize("scale", ["abc", "1e999", "-1", ""])
def test_a_scale_that_is_no_number_is_refused(deploy, tmp_path, monkeypatch, scale):
    """The file exists, so the rest is neither a quantization nor a part of its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poet.gguf").touch()
    done, found = deploy(*BASE, "--lora", f"poet.gguf:{scale}")
    assert (done.exit_code, found) == (2, {})
    assert f'--lora: the scale "{scale}" of poet.gguf is no number; write poet.gguf:0.5' in done.stderr


def test_each_adapter_is_a_model_of_its_own(deploy, tmp_path, monkeypatch):
    """`--lora` takes a path or another source, a name and a scale; they are in the service, in order."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poet.gguf").touch()
    done, found = deploy(
        *BASE, "--lora", "poet.gguf:0.5", "--lora", "clerk=hf://org/repo/clerk.gguf", "--lora", "/a=b:c"
    )
    assert done.exit_code == 0, done.output
    sources = [found["Model", f"default/chat-lora-{number}"].spec.source for number in (1, 2, 3)]
    assert sources == [str(tmp_path / "poet.gguf"), "hf://org/repo/clerk.gguf", "/a=b:c"]
    adapters = found["InferenceService", "default/chat"].spec.adapters
    assert [(each.model_ref, each.name, each.scale) for each in adapters] == [
        ("chat-lora-1", None, "0.5"),
        ("chat-lora-2", "clerk", "1"),
        ("chat-lora-3", None, "1"),
    ]
