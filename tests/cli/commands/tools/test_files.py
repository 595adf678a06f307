from pathlib import Path

import pytest

from llmkube.cli.commands.tools.files import ManifestError, demo_manifests, load_manifests

GOOD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def load(*names, stdin=""):
    return load_manifests([str(name) for name in names], lambda: stdin)


def write(path, text):
    path.write_text(text)
    return path


def refused(tmp_path, text):
    with pytest.raises(ManifestError) as caught:
        load(write(tmp_path / "x.yaml", text))
    return [line.removeprefix(f"{tmp_path}/x.yaml, ") for line in str(caught.value).splitlines()]


def test_files_folders_and_stdin_come_in_order(tmp_path):
    """Sources keep their order; a folder's manifests come by name, and its other files are ignored."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("b.yml", "a.yaml", "c.json", "notes.txt"):
        write(folder / name, GOOD.replace("name: a", f"name: {name[0]}"))
    first = write(tmp_path / "first.yaml", GOOD.replace("name: a", "name: first"))
    found = load(first, folder, "-", stdin=GOOD.replace("name: a", "name: last"))
    assert [each.body["metadata"]["name"] for each in found] == ["first", "a", "b", "c", "last"]
    assert [each.where for each in found][::4] == [f"{first}, document 1", "standard input, document 1"]


def test_documents_are_numbered_and_empty_ones_skipped(tmp_path):
    """Leading separators and comments are no documents; document numbers are those of the file."""
    found = load(write(tmp_path / "x.yaml", f"---\n# nothing\n---\n{GOOD}---\n---\n{GOOD}"))
    assert [each.where.rpartition(", ")[2] for each in found] == ["document 2", "document 4"]


def test_lists_are_unrolled(tmp_path):
    """`kind: List` is applied item by item."""
    item = '{"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}}'
    text = f'{{"apiVersion": "v1", "kind": "List", "items": [{item}]}}'
    assert [each.title for each in load(write(tmp_path / "x.json", text))] == ["A a"]


SCALARS = {"yes": True, "1e3": 1000.0, "-3": -3, "1.5": 1.5, "~": None}
SCALARS |= {text: text for text in ("12:30", "2024-01-01", "007", "1.2.3")}


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_scalars_are_read_as_kubectl_reads_them(tmp_path, text, value):
    """Texts are not read as dates or base-60 numbers."""
    (found,) = load(write(tmp_path / "x.yaml", f"{GOOD}data: {{value: {text}}}\n"))
    assert found.body["data"]["value"] == value


def test_keys_are_texts(tmp_path):
    """Keys that look like booleans or numbers stay texts, as in JSON."""
    (found,) = load(write(tmp_path / "x.yaml", f"{GOOD}data: {{on: a, 1: b}}\n"))
    assert found.body["data"] == {"on": "a", "1": "b"}


def test_merge_keys_still_merge(tmp_path):
    (found,) = load(write(tmp_path / "x.yaml", f"{GOOD}x: &x {{a: 1, b: 2}}\ndata: {{<<: *x, b: 3}}\n"))
    assert found.body["data"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: A\nmetadata: {name: a}", "document 1: apiVersion: is missing; write a string"),
        ("apiVersion: v1\nmetadata: {name: a}", "document 1: kind: is missing; write a string"),
        ("apiVersion: v1\nkind: A", "document 1: metadata: is missing; write a mapping with a name"),
        ("apiVersion: v1\nkind: A\nmetadata: {}", "document 1: metadata.name: is missing; write a string"),
        ("apiVersion: v1\nkind: A\nmetadata: {name: 7}", "document 1: metadata.name: is 7; write a string"),
        ("- a", "document 1: is a list, not an object; start with apiVersion, kind and metadata"),
        ("hello", 'document 1: is "hello", not an object; start with apiVersion, kind and metadata'),
        (f"{GOOD}---\na: [", "document 2, line 5: expected the node content, but found '<stream end>'"),
        (f"{GOOD}kind: B\n", 'document 1, line 4: duplicate key "kind"'),
        ("? [a]\n: b", "document 1, line 1: a key must be a string"),
        ("a: \x01", "document 1: is not YAML (ReaderError)"),
    ],
)
def test_invalid_manifest_is_refused(tmp_path, text, problem):
    """The error names the document, the field or line, and what to write."""
    assert refused(tmp_path, text) == [problem]


def test_our_own_kinds_are_checked_by_type(tmp_path):
    """A wrong type is refused with the field's path before anything is applied."""
    text = "apiVersion: inference.llmkube.dev/v1alpha1\nkind: Model\nmetadata: {name: a}\nspec: {source: 7}\n"
    (problem,) = refused(tmp_path, text)
    assert problem.startswith("document 1: spec.source")


def test_all_problems_are_reported_at_once(tmp_path):
    """One run shows every mistake of every file."""
    bad = write(tmp_path / "bad.yaml", "kind: A\n---\n- b\n")
    with pytest.raises(ManifestError) as caught:
        load(bad, tmp_path / "none.yaml", "-", stdin="x: [")
    assert len(str(caught.value).splitlines()) == 5
    assert f"{tmp_path}/none.yaml: cannot be read (No such file or directory)" in str(caught.value)


def test_a_folder_without_manifests_is_an_error(tmp_path):
    """A wrong folder does not silently apply nothing."""
    with pytest.raises(ManifestError, match=r"has no \.yaml, \.yml or \.json file"):
        load(tmp_path)


def test_text_that_is_not_utf8_is_an_error(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="is not UTF-8 text"):
        load(tmp_path / "x.yaml")


def test_the_demo_is_a_model_and_its_service():
    """They are those of examples/demo.yaml."""
    model, service = (each.body for each in demo_manifests())
    example = Path(__file__).parents[4] / "examples" / "demo.yaml"
    assert [each.body for each in load_manifests([str(example)], str)] == [model, service]
    assert (model["kind"], model["spec"]["source"]) == ("Model", "builtin://demo")
    assert (service["kind"], service["spec"]["modelRef"]) == ("InferenceService", model["metadata"]["name"])


def test_bytes_on_standard_input_are_no_manifest():
    """The error is that of a file."""

    def read():
        return b"\xff".decode()

    with pytest.raises(ManifestError, match="standard input: is not UTF-8 text"):
        load_manifests(["-"], read)
