"""The Dockerfile's lines name what exists and keep what they promise; `make node` builds it."""

import json
import os
import re
import subprocess
import tomllib

import pytest

from charts.helm_runs import ROOT, named, render
from llmkube.programs.bundled_engine import llama_server

TEXT = (ROOT / "Dockerfile").read_text()
LINES = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n\s*", " ", TEXT).splitlines()
    if line.strip() and not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stage(name):
    """The lines of a stage; without a name, of the one that is built when no target is named."""
    starts = [number for number, (word, _) in enumerate(LINES) if word == "FROM"]
    named_by = {LINES[start][1].partition(" AS ")[2]: start for start in starts}
    start = named_by[name]
    return LINES[start : next((each for each in starts if each > start), None)]


def test_what_is_copied_exists_and_is_sent():
    """Every path of a COPY is in the tree, is let through by .dockerignore, and nothing else is."""
    copied = {path for word, rest in LINES if word == "COPY" and "--from" not in rest for path in rest.split()[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "requirements", "src"}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / path).exists() for path in sent)
    assert {path for path in sent if "/" not in path} | {"requirements"} == copied
    assert {path for path in sent if "/" in path} == locks()


def test_the_build_has_every_file_that_the_package_needs():
    """The readme and the packages that pyproject.toml names are among what is copied."""
    copied = " ".join(rest for word, rest in LINES if word == "COPY")
    assert PROJECT["readme"] in copied.split()
    assert "pyproject.toml" in copied


def locks():
    """Every file that a command may install, whatever EXTRAS is."""
    named_ones = {"${EXTRAS:-runtime}", *re.findall(r"requirements/(\w+)\.txt", TEXT)}
    known = {"${EXTRAS:-runtime}": ("runtime", re.search(r"`(\w+)` adds llama\.cpp", TEXT)[1])}
    return {f"requirements/{each}.txt" for name in named_ones for each in known.get(name, (name,))}


def test_the_extra_is_the_project_s():
    """The extra that a comment offers exists, and each extra has a lock of its name."""
    assert "`llama` adds llama.cpp" in TEXT
    assert "llama" in PROJECT["optional-dependencies"]
    assert all((ROOT / f"requirements/{extra}.txt").is_file() for extra in PROJECT["optional-dependencies"])


def test_what_is_installed_is_pinned_by_digest():
    """Only wheels of the locks are taken; this project itself fetches nothing."""
    commands = [part for word, rest in LINES if word == "RUN" for part in rest.split("&&") if " -m pip " in part]
    assert len(commands) == 4
    for command in commands:
        pinned = "--require-hashes" in command and "--only-binary=:all:" in command and "-r " in command
        ours = "--no-deps" in command and ("--no-build-isolation" in command or "--no-index" in command)
        assert pinned != ours, command


def test_no_image_is_named_by_a_tag():
    """Every stage is the base that was given or another stage; no other image, nor any frontend, is fetched."""
    bases = [rest.split()[0] for word, rest in LINES if word == "FROM"]
    assert bases == [
        "${BASE}",
        "${BASE}",
        "llmkube",
        "llmkube",
    ]  # plain: buildah 1.28 refuses a Dockerfile with ${BASE:?…}
    (default,) = re.findall(r"^ARG BASE=(.+)$", TEXT, re.MULTILINE)
    assert default.startswith("--build-arg_BASE=")  # no image's name begins with a hyphen: every engine refuses it
    assert not re.search(r"^# *syntax *=", TEXT, re.MULTILINE)


@pytest.mark.parametrize(
    ("base", "code"),
    [
        (f"python:3.13-slim@sha256:{'a' * 64}", 0),
        (f"r.example.com:5000/mirror/python@sha256:{'0' * 64}", 0),
        ("python:3.13-slim", 1),
        ("python@sha256:abc", 1),
        (f"python@sha256:{'a' * 64}b", 1),
        ("", 1),
    ],
)
def test_a_base_without_a_digest_ends_the_build(base, code):
    """The first command of the first stage, run by sh as the build does."""
    command = next(rest for word, rest in LINES if word == "RUN")
    env = {**os.environ, "BASE": base}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("has no digest" in done.stderr) == bool(code)


def test_what_is_built_without_a_target_is_the_image_of_the_programs():
    """The last stage, which builders take then, is the image itself; a target adds nothing to what is in it."""
    assert stage("") == [["FROM", "llmkube"]]


def test_the_target_for_cpus_is_the_bundled_engine_and_is_not_built_without_it():
    """Its arguments are those of llama.cpp's own image; without EXTRAS=llama the build ends, and says why."""
    words = [word for word, _ in stage("llama-server")]
    assert words == [
        "FROM",
        "ARG",
        "RUN",
        "ENTRYPOINT",
        "CMD",
    ]  # user and environment stay as they are
    lines = dict(stage("llama-server"))
    assert json.loads(lines["ENTRYPOINT"]) == [llama_server.PROGRAM]
    assert llama_server.PROGRAM in PROJECT["scripts"]
    for extras, code in (("llama", 0), ("", 1)):
        env = {**os.environ, "EXTRAS": extras}
        done = subprocess.run(["sh", "-c", lines["RUN"]], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert ("--build-arg EXTRAS=llama" in done.stderr) == bool(code)


def test_the_image_installs_nothing_but_what_llama_cpp_needs():
    """Without EXTRAS it runs no command at all: what it has comes from the base image and from the first stage."""
    (run,) = [rest for word, rest in stage("llmkube") if word == "RUN"]
    assert run.startswith('if [ "${EXTRAS}" = llama ]; then')
    assert run.endswith(" fi")
    assert [word for word, _ in stage("llmkube")].count("COPY") == 1
    assert re.findall(r"--no-install-recommends (.+?) +&&", run) == ["libgomp1"]


def test_the_entry_point_is_a_script_of_the_package():
    """ENTRYPOINT is what the wheel installs, and the chart's arguments are commands of it."""
    lines = dict(stage("llmkube"))
    assert lines["ENTRYPOINT"] == '["llmkube"]'
    assert "llmkube" in PROJECT["scripts"]
    assert lines["CMD"] == '["controller"]'
    assert "/opt/llmkube/bin" in lines["ENV"]


def test_the_user_is_the_chart_s_and_not_root():
    """A numeric uid, which runAsNonRoot can check, the same as in the Deployment."""
    uid, gid = map(int, dict(stage("llmkube"))["USER"].split(":"))
    (workload,) = named(render(), "Deployment").values()
    context = workload["spec"]["template"]["spec"]["securityContext"]
    assert (uid, gid) == (context["runAsUser"], context["runAsGroup"])
    assert uid > 0


def test_all_that_is_written_goes_to_tmp():
    """Home and state are below the one folder that the Deployment mounts writable."""
    environment = dict(each.split("=", 1) for each in dict(stage("llmkube"))["ENV"].split())
    (workload,) = named(render(), "Deployment").values()
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    (mount,) = only["volumeMounts"]
    assert mount["mountPath"] == "/tmp"
    for name in ("HOME", "LLMKUBE_STATE_DIR"):
        assert f"{environment[name]}/".startswith("/tmp/")
