"""`llmkube convert --from …`: models of other programs as objects, and what has no counterpart by name."""

import json

import pytest
import yaml
from click.testing import CliRunner

from llmkube.cli.main import cli
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.registry import check

SWAP = """
healthCheckTimeout: 90
globalTTL: 600
macros:
  folder: /srv/models
  server: >
    /opt/llama.cpp/llama-server --port ${PORT} --ctx-size ${ctx}
  ctx: 2048
models:
  "Coder:7B":
    macros: {ctx: 8192, gpus: "0,1"}
    cmd: |
      # long context
      ${server} \\
      -m ${folder}/coder.gguf -np 2 -fa -ctk q8_0 -ctv q8_0 --temp 0.6
      --mmproj ${folder}/coder-mmproj.gguf --lora ${folder}/style.gguf --log-file /tmp/log --api-key ${env.SWAP_KEY}
      --brand-new 3
    ttl: 300
    env: ["CUDA_VISIBLE_DEVICES=${gpus}", "TOKEN=${env.SWAP_KEY}", "LLAMA_ARG_CTX_SIZE=5"]
    aliases: [gpt-4o-mini, {id: codex, unlisted: true}]
    unlisted: true
    filters:
      stripParams: top_p
      setParams: {temperature: 0.2, top_k: 20, seed: 7}
      setParamsByID:
        "${MODEL_ID}:fast": {max_tokens: 64, chat_template_kwargs: {enable_thinking: false}}
  embed:
    cmd: llama-server -hf org/embed-GGUF:Q8_0 --embedding -c 0
    proxy: http://127.0.0.1:${PORT}
  speech:
    cmd: docker run --rm image --key ${env.SWAP_KEY}
  unset:
    cmd: llama-server -m ${env.NO_SUCH_VARIABLE}/x.gguf
  odd: 5
groups:
  small: {swap: false, persistent: true, members: [embed]}
peers:
  cloud: {proxy: "https://cloud.example/api/", apiKey: "${env.SWAP_KEY}", models: [big/model-1.5]}
"""


def convert(*args, env=None):
    done = CliRunner().invoke(cli, ("convert", *map(str, args)), env=env)
    objects = {
        (each["kind"], each["metadata"]["name"]): each["spec"] for each in yaml.safe_load_all(done.stdout) if each
    }
    return done, objects


def checked(objects, name):
    """Return a service's spec, after the check that a host would make."""
    body = {"metadata": {"name": name}, "spec": objects["InferenceService", name]}
    service = decode(InferenceService, body)
    check(service, decode(Model, {"metadata": {"name": name}, "spec": objects["Model", name]}))
    return objects["InferenceService", name]


def test_a_config_of_llama_swap_becomes_objects_that_hosts_accept(tmp_path):
    """Macros, aliases, times, filters, adapters and groups have their fields; a peer is a backend of a router."""
    file = tmp_path / "config.yaml"
    file.write_text(SWAP)
    done, objects = convert("--from", "llama-swap", "-f", file, "--accelerator", "cuda", env={"SWAP_KEY": "s3cret"})
    coder = checked(objects, "coder-7b")
    assert objects["Model", "coder-7b"] == {
        "source": "/srv/models/coder.gguf",
        "mmproj": "/srv/models/coder-mmproj.gguf",
        "hardware": {"accelerator": "cuda"},
    }
    assert (coder["contextSize"], coder["parallelSlots"], coder["flashAttention"]) == (8192, 2, True)
    assert coder["aliases"] == ["Coder:7B", "gpt-4o-mini", "codex"]
    assert coder["activation"] == {"mode": "OnRequest", "idleTimeout": "300s"}
    assert coder["extraArgs"] == ["-ctk", "q8_0", "-ctv", "q8_0", "--temp", "0.6"]
    assert coder["env"] == [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]
    sampled = {"temperature": "0.2", "topK": 20}
    fast = {"name": "Coder:7B:fast", **sampled, "maxTokens": 64, "thinking": False}
    assert coder["presets"] == [{"name": "coder-7b", **sampled}, {"name": "Coder:7B", **sampled}, fast]
    assert objects["Model", "coder-7b-lora-1"]["source"] == "/srv/models/style.gguf"
    embed = checked(objects, "embed")
    assert (embed["activation"], embed["extraArgs"]) == ({"mode": "OnRequest", "pin": True}, ["-c", "0", "--embedding"])
    (backend,) = objects["ModelRouter", "peers"]["backends"]
    external = {"provider": "openai", "model": "big/model-1.5", "url": "https://cloud.example/api/v1"}
    assert backend["external"] == {**external, "credentialsSecretRef": {"name": "cloud"}}
    assert "s3cret" not in done.output


def test_what_llama_swap_has_and_we_do_not_is_named_by_model_and_field(tmp_path):
    """A model that cannot be converted leaves the others; the exit code is then 1."""
    file = tmp_path / "config.yaml"
    file.write_text(SWAP)
    done, _ = convert("--from", "llama-swap", "-f", file, "--accelerator", "cuda", env={"SWAP_KEY": "s3cret"})
    lines = done.stderr.replace(f"{file}, ", "").replace(f"{file}: ", "")
    for line in (
        "healthCheckTimeout: a load has no deadline",
        "groups: the host's memory decides",
        "peers.cloud.apiKey: not copied; create a Secret",
        "Coder:7B: unlisted: has no counterpart",
        "Coder:7B: env: TOKEN holds a secret; remove it, or allow it on this machine",
        "Coder:7B: env: LLAMA_ARG_CTX_SIZE sets a flag of the engine; use its field, or extraArgs",
        "Coder:7B: filters.stripParams: has no counterpart",
        "Coder:7B: filters, Coder:7B, seed: has no counterpart",
        "Coder:7B: --log-file: makes the engine write to this machine's disk",
        "Coder:7B: --api-key: holds a secret",
        "Coder:7B: --brand-new: no flag of llama-server that is known here",
        "embed: proxy: the gateway connects to the engine itself",
        "speech: cmd runs docker; only commands of llama-server are converted",
        "unset: ${env.NO_SUCH_VARIABLE} is not defined",
        "odd: its value: must be a mapping",
    ):
        assert line in lines
    assert done.exit_code == 1


def test_a_model_of_llama_swap_with_a_wrong_value_leaves_the_others(tmp_path):
    """The field is named without its value; names may be numbers; of two equal names the first is kept."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "models: {7: {cmd: llama-server -m /seven.gguf, aliases: null}, x: {cmd: 5}, y: {cmd: '', env: [A=1, 5]},\n"
        "  Qwen:7B: {cmd: llama-server -m /a.gguf}, qwen-7b: {cmd: llama-server -m /b.gguf}}"
    )
    done, objects = convert("--from", "llama-swap", "-f", file, "--accelerator", "cpu")
    sources = {name: spec["source"] for (kind, name), spec in objects.items() if kind == "Model"}
    assert sources == {"7": "/seven.gguf", "qwen-7b": "/a.gguf"}
    for line in (
        "x: cmd: must be a text",
        "y: env[1]: must be a text",
        "qwen-7b: its name here is qwen-7b, as that of Qwen:7B; rename one of them",
    ):
        assert f"{file}, {line}\n" in done.stderr.removeprefix("Error: ")
    assert done.exit_code == 1


def test_presets_of_llama_server_have_one_model_for_each_section(tmp_path):
    """Settings of [*] apply to all; switches can be turned off; a section without a model is a repository."""
    file = tmp_path / "models.ini"
    file.write_text(
        "version = 1\n[*]\nc = 4096\njinja = true\nmmap = 0\n\n[org/small-GGUF:Q4_K_M]\nload-on-startup = true\n\n"
        "[local]\nmodel = ./local.gguf\nctx-size = 8192\nLLAMA_ARG_THREADS = 3\ntools = all\n"
    )
    done, objects = convert("--from", "llama-presets", "-f", file, "--accelerator", "cpu")
    assert done.exit_code == 0, done.output
    small, local = checked(objects, "org-small-gguf-q4-k-m"), checked(objects, "local")
    assert objects["Model", "org-small-gguf-q4-k-m"]["source"] == "hf://org/small-GGUF:Q4_K_M"
    assert (small["aliases"], small["contextSize"]) == (["org/small-GGUF:Q4_K_M"], 4096)
    assert objects["Model", "local"]["source"] == str(tmp_path / "local.gguf")
    assert local["contextSize"] == 8192
    assert sorted(local["extraArgs"]) == ["--jinja", "--no-mmap", "--threads", "3"]
    assert "org/small-GGUF:Q4_K_M: load-on-startup: a new service is loaded once" in done.stderr
    assert "local: --tools: lets requests run programs on this machine" in done.stderr


def write_store(store, model: bytes, **layers):
    """Write an Ollama store with one model, `tuned`; return the path of its file."""
    blobs, listed = store / "blobs", []
    blobs.mkdir(parents=True)
    for kind, data in {"model": model, **layers}.items():
        digest = f"sha256:{len(listed):064x}"
        (blobs / digest.replace(":", "-")).write_bytes(data)
        listed.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": len(data)})
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "tuned" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": listed}))
    return blobs / f"sha256-{0:064x}"


def test_a_store_of_ollama_is_used_in_place(tmp_path, monkeypatch):
    """Parameters have their flags or fields, the system text a preset; the template of the file itself is used."""
    parameters = {"num_ctx": 2048, "temperature": 0.3, "stop": ["<|end|>"]}
    path = write_store(tmp_path, b"GGUF", params=json.dumps(parameters).encode(), system=b"Be brief.", template=b"x")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    done, objects = convert("--from", "ollama", "--accelerator", "cpu")
    assert done.exit_code == 0, done.output
    spec = checked(objects, "tuned-latest")
    assert objects["Model", "tuned-latest"]["source"] == str(path)
    assert spec["aliases"] == ["tuned:latest", "tuned"]
    assert (spec["contextSize"], spec["extraArgs"]) == (2048, ["--temp", "0.3"])
    assert {each["name"]: each["system"] for each in spec["presets"]}["tuned"] == "Be brief."
    assert f"start llmkube up with --allow-local-sources {tmp_path / 'blobs'}" in done.stderr
    assert "tuned:latest: parameter stop: an engine stops at the model's own end" in done.stderr
    assert "tuned:latest: template: the chat template in the model's own file is used" in done.stderr


def test_a_broken_manifest_of_ollama_leaves_the_other_models(tmp_path):
    """The message names the file."""
    path = write_store(tmp_path, b"GGUF")
    library = tmp_path / "manifests" / "registry.ollama.ai" / "library"
    layer = {"mediaType": "application/vnd.ollama.image.params", "digest": "sha256:lost"}
    for name, text in (("cut", "{"), ("list", "[]"), ("lost", json.dumps({"layers": [layer]}))):
        (library / name).mkdir()
        (library / name / "latest").write_text(text)
    done, objects = convert("--from", "ollama", "-f", tmp_path, "--accelerator", "cpu")
    assert {name: spec["source"] for (kind, name), spec in objects.items() if kind == "Model"} == {
        "tuned-latest": str(path)
    }
    for name in ("cut", "list", "lost"):
        assert f"{tmp_path}, {name}:latest: {library / name / 'latest'} cannot be read" in done.stderr
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("program", "text", "message"),
    [
        ("llama-swap", "a: b", "is no config of llama-swap"),
        ("llama-swap", "models: {x: {cmd: 'llama-server -c 1'}}", "names no model: it has none of -m, -hf"),
        ("llama-swap", "a: [", "is no config of llama-swap"),
        ("llama-swap", "", "is no config of llama-swap: it has no models"),
        ("llama-swap", "models: 5", "models: must be a mapping"),
        ("llama-swap", "models: {}\ngroups: {g: 5}", "groups.g: must be a mapping"),
        ("llama-swap", "models: {}\npeers: {p: {proxy: http://x}}", "peers.p.models: is missing"),
        ("llama-swap", "models: {}\npeers: {p: {proxy: http://x, models: [5]}}", "peers.p.models[0]: must be a text"),
        ("llama-presets", "[x]\n[x]\n", "is no file of presets"),
        ("ollama", "", "has no manifests; name Ollama's folder of models"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, program, text, message):
    """The message names the file."""
    file = tmp_path / "file"
    file.write_text(text)
    done, objects = convert("--from", program, "-f", file)
    assert (done.exit_code, objects) == (1, {})
    assert f"{file}" in done.stderr
    assert message in done.stderr
