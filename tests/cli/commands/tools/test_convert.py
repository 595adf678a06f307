import pytest
import yaml
from click.testing import CliRunner

from llmkube.cli.main import cli

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
    """An old manifest on standard input comes out as two objects, and other objects stay as they are."""
    done = convert(f"{OLD}---\n{OTHER}")
    assert done.exit_code == 0, done.output
    model, service, other = yaml.safe_load_all(done.stdout)
    assert (model["kind"], model["spec"]["hardware"]) == ("Model", {"accelerator": "metal"})
    assert (service["kind"], service["spec"]) == ("InferenceService", {"modelRef": "chat"})
    assert other == yaml.safe_load(OTHER)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "spec.model.name: a/b-GGUF may have several files"),
        ("  vram: 3\n", "spec.vram: 3 is no field of inference.llmkube.dev/v1alpha1, and is left out"),
        ("  replicas: 11\n", "the InferenceService will be refused: spec.replicas: Invalid value: 11"),
        ("  vllmConfig: {speculative: {tokens: 3}}\n", "spec.vllmConfig.speculative.tokens: is no field of the"),
    ],
)
def test_what_needs_a_look_is_said_on_standard_error(line, said):
    """Each remark names the document and the field, and none of them is among the objects."""
    done = convert(OLD + line)
    assert done.exit_code == 0
    assert f"standard input, document 1: {said}" in done.stderr
    assert said not in done.stdout


def test_a_manifest_without_a_model_fails_and_the_others_are_printed():
    """One document that cannot be converted makes the exit code 1, and does not hold the others back."""
    done = convert(f"{OLD.replace('huggingface', 'ollama')}---\n{OLD}")
    assert done.exit_code == 1
    assert "standard input, document 1: spec.model.source: 'ollama' is neither huggingface nor" in done.stderr
    assert [each["kind"] for each in yaml.safe_load_all(done.stdout)] == ["Model", "InferenceService"]


def test_a_file_is_read(tmp_path):
    """A file is named in the remarks as the user named it."""
    file = tmp_path / "old.yaml"
    file.write_text(OLD)
    done = CliRunner().invoke(cli, ["convert", "-f", str(file)])
    assert done.exit_code == 0
    assert f"{file}, document 1: spec.model.name" in done.stderr
