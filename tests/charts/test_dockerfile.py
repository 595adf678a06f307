"""The Dockerfile's lines name what exists and keep what they promise; no container engine is here to build it."""

import re
import tomllib

from charts.helm_runs import ROOT, named, render

TEXT = (ROOT / "Dockerfile").read_text()
LINES = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n\s*", " ", TEXT).splitlines()
    if line.strip() and not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def last_stage():
    start = max(number for number, (word, _) in enumerate(LINES) if word == "FROM")
    return LINES[start:]


def test_what_is_copied_exists_and_is_sent():
    """Every path of a COPY is in the tree, is let through by .dockerignore, and nothing else is."""
    copied = {path for word, rest in LINES if word == "COPY" and "--from" not in rest for path in rest.split()[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src"}
    assert all((ROOT / path).exists() for path in copied)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


def test_the_build_has_every_file_that_the_package_needs():
    """The readme and the packages that pyproject.toml names are among what is copied."""
    copied = " ".join(rest for word, rest in LINES if word == "COPY")
    assert PROJECT["readme"] in copied.split()
    assert "pyproject.toml" in copied


def test_extras_and_python_are_the_project_s():
    """The extra that a comment offers exists, and the base image's Python is new enough."""
    assert re.search(r"`(\w+)` adds llama\.cpp", TEXT)[1] in PROJECT["optional-dependencies"]
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", TEXT, re.MULTILINE)
    least = PROJECT["requires-python"].removeprefix(">=")
    assert tuple(map(int, python.split("."))) >= tuple(map(int, least.split(".")))


def test_the_last_stage_installs_nothing():
    """It runs no command at all: what it has comes from a slim image and from the first stage."""
    words = [word for word, _ in last_stage()]
    assert "RUN" not in words
    assert words.count("COPY") == 1
    assert "-slim" in last_stage()[0][1]


def test_the_entry_point_is_a_script_of_the_package():
    """ENTRYPOINT is what the wheel installs, and the chart's arguments are commands of it."""
    stage = dict(last_stage())
    assert stage["ENTRYPOINT"] == '["llmkube"]'
    assert "llmkube" in PROJECT["scripts"]
    assert stage["CMD"] == '["controller"]'
    assert "/opt/llmkube/bin" in stage["ENV"]


def test_the_user_is_the_chart_s_and_not_root():
    """A numeric uid, which runAsNonRoot can check, the same as in the Deployment."""
    uid, gid = map(int, dict(last_stage())["USER"].split(":"))
    (workload,) = named(render(), "Deployment").values()
    context = workload["spec"]["template"]["spec"]["securityContext"]
    assert (uid, gid) == (context["runAsUser"], context["runAsGroup"])
    assert uid > 0


def test_all_that_is_written_goes_to_tmp():
    """Home and state are below the one folder that the Deployment mounts writable."""
    environment = dict(each.split("=", 1) for each in dict(last_stage())["ENV"].split())
    (workload,) = named(render(), "Deployment").values()
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    (mount,) = only["volumeMounts"]
    assert mount["mountPath"] == "/tmp"
    for name in ("HOME", "LLMKUBE_STATE_DIR"):
        assert f"{environment[name]}/".startswith("/tmp/")
