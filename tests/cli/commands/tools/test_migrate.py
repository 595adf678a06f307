"""`llmkube migrate --check` and `llmkube convert`: findings, output and exit codes."""

import pytest
import yaml
from click.testing import CliRunner

from llmkube.cli.commands.tools.migrate import UNCHANGED, findings, migrate
from llmkube.cli.main import cli
from migration.shapes import POOL, SHAPES

PLAIN = [
    {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "Model", "metadata": {"name": "llama"},
     "spec": {"source": "org/repo", "files": ["m.gguf"], "hardware": {"accelerator": "metal"}}},
    {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "llama-3.1-70b"},
     "spec": {"modelRef": "llama"}},
]  # fmt: skip


def check(tmp_path, bodies):
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(bodies))
    result = CliRunner().invoke(migrate, ["--check", "-f", str(file)])
    return result.exit_code, result.output


def test_a_plain_service_lists_what_changes_and_how_to_keep_it(tmp_path):
    """Context and name are listed, each with the setting that keeps it, and nothing is refused."""
    code, text = check(tmp_path, PLAIN)
    assert code == 0
    assert "InferenceService default/llama-3.1-70b" in text
    assert "context: 2048 tokens there, at most 4096 here" in text
    assert "to keep it: spec.contextSize: 2048" in text
    assert "clients reach it as llama-3-1-70b there" in text
    assert "2 objects, 2 findings. Nothing was changed." in text


def test_common_shapes_list_priorities_and_refusals(tmp_path):
    """A priority class that is not allowed is refused by its field, and the exit code is 1."""
    bodies = [body for shape in SHAPES for body in shape.manifests()]
    code, text = check(tmp_path, [*bodies, POOL])
    assert code == 1
    assert text.count("spec.priorityClassName") == 2
    assert "workloads.allow.priorityClasses" in text
    assert "llmkube-high there, which preempts ordinary pods; llmkube-service-high here" in text
    assert "ModelPool ai/pool\n  changes: members start and stop by requests" in text
    assert "context: " not in text  # every shape sets its context


def test_slots_and_context_of_pods_are_compared(tmp_path):
    """Fields that are unset there need a value here."""
    model = {**PLAIN[0], "spec": {**PLAIN[0]["spec"], "hardware": {"accelerator": "cuda"}}}
    _, text = check(tmp_path, [model, PLAIN[1]])
    assert 'to keep it: spec.extraArgs: ["--ctx-size", "0"]' in text
    assert "to keep it: spec.parallelSlots: 4" in text
    assert "disruption" not in text  # loading pods are protected here too


def grouped(runtime, weights, accelerator="cuda"):
    hardware = {
        "accelerator": accelerator,
        **({} if accelerator == "metal" else {"gpu": {"enabled": True, "count": 1}}),
    }
    model = {**PLAIN[0], "spec": {"source": "org/repo", "format": weights, "hardware": hardware}}
    members = {"members": [{"node": "spark-1"}, {"node": "spark-2"}]}
    service = {**PLAIN[1], "spec": {"modelRef": "llama", "runtime": runtime, "multiNode": members}}
    return [model, service]


def test_a_model_over_several_nodes_lists_what_it_needs(tmp_path):
    """A vLLM group is served once LeaderWorkerSet is installed: nothing is refused."""
    code, text = check(tmp_path, grouped("vllm", "safetensors"))
    assert code == 0
    assert "multiNode: a LeaderWorkerSet here" in text
    assert "to keep it: install https://lws.sigs.k8s.io" in text


@pytest.mark.parametrize(
    ("runtime", "weights", "accelerator", "words"),
    [
        ("llamacpp", "gguf", "cuda", "llamacpp does not serve one model over several nodes here"),
        ("sglang", "safetensors", "cuda", "sglang does not serve one model over several nodes here"),
        ("llamacpp", "gguf", "metal", "a model cannot span several machines here"),
    ],
)
def test_unsupported_group_is_refused_by_its_field(tmp_path, runtime, weights, accelerator, words):
    """The error names the field and the reason."""
    code, text = check(tmp_path, grouped(runtime, weights, accelerator))
    assert code == 1
    assert "refused: spec.multiNode" in " ".join(text.split())
    assert words in " ".join(text.split())


def test_without_check_nothing_is_done():
    """The command can only check."""
    result = CliRunner().invoke(migrate, [])
    assert result.exit_code == 2
    assert "--check is required" in result.output


@pytest.mark.parametrize("kind", ["LoRAAdapter", "ModelRouter"])
def test_unsupported_kind_is_named_with_its_replacement(kind):
    """The object is unchanged, and the message names the replacement."""
    body = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": {}}
    [found] = findings([body])
    assert (found.subject, found.outcome) == (f"{kind} default/x", UNCHANGED)
    assert ":" in found.message


def test_other_objects_are_skipped():
    assert not list(findings([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}]))


OLD = """\
apiVersion: llmkube.io/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {source: huggingface, name: a/b-GGUF}
  accelerator: metal
"""
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {a: b}\n"


def convert(text, *args):
    return CliRunner().invoke(cli, ["convert", "-f", "-", *args], input=text)


def test_a_model_and_a_service_are_printed():
    """An old manifest becomes two objects; other objects stay unchanged."""
    done = convert(f"{OLD}---\n{OTHER}")
    assert done.exit_code == 0, done.output
    model, service, other = yaml.safe_load_all(done.stdout)
    assert (model["kind"], model["spec"]["hardware"]) == ("Model", {"accelerator": "metal"})
    assert (service["kind"], service["spec"]) == ("InferenceService", {"modelRef": "chat"})
    assert other == yaml.safe_load(OTHER)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "spec.model.name: a/b-GGUF may have several files"),
        ("  vram: 3\n", "spec.vram: 3 dropped, because inference.llmkube.dev/v1alpha1 has no such field"),
        ("  replicas: 11\n", "the InferenceService will be refused: spec.replicas: Invalid value: 11"),
        ("  vllmConfig: {speculative: {tokens: 3}}\n", "spec.vllmConfig.speculative.tokens: is not a field of the"),
    ],
)
def test_remarks_are_printed_on_stderr(line, message):
    """Each remark names document and field, and is not printed among the objects."""
    done = convert(OLD + line)
    assert done.exit_code == 0
    assert f"standard input, document 1: {message}" in done.stderr
    assert message not in done.stdout


def test_a_manifest_without_a_model_fails_and_the_others_are_printed():
    """A document that cannot be converted sets exit code 1; the others are printed."""
    done = convert(f"{OLD.replace('huggingface', 'ollama')}---\n{OLD}")
    assert done.exit_code == 1
    assert "standard input, document 1: spec.model.source: 'ollama' is neither huggingface nor" in done.stderr
    assert [each["kind"] for each in yaml.safe_load_all(done.stdout)] == ["Model", "InferenceService"]


def test_a_file_is_read(tmp_path):
    """Remarks name the file as the user did."""
    file = tmp_path / "old.yaml"
    file.write_text(OLD)
    done = CliRunner().invoke(cli, ["convert", "-f", str(file)])
    assert done.exit_code == 0
    assert f"{file}, document 1: spec.model.name" in done.stderr
