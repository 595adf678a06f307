"""The console blocks of the pages are run unchanged, and each of their commands has to succeed.

A block that cannot be run here says why on its fence: "```console not run: it needs a cluster". The others run in
bash, one script for each page, in an empty home that contains the repository's examples.
"""

import re
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from docs.newcomer import consoles, settle
from docs.pages import ROOT, name, pages
from e2e.kubectl_tool import needs_kubectl
from e2e.up_process import FREE_PORTS, engines_in, environment, open_up

NOT_RUN = re.compile(r"not run: [^\s`][^`]*")  # a fence with a backtick in its first line is not rendered
DEADLINE_SECONDS = 600.0


def test_a_console_block_has_commands_and_is_run_or_names_the_obstacle():
    for block in (block for page in pages() for block in consoles(page)):
        assert block.commands, f"{block.page}: a console block has commands behind `$ `:\n{block.text}"
        assert not block.note or NOT_RUN.fullmatch(block.note), f"{block.page}: what is ```console {block.note}?"


def script_of(page):
    """The page's blocks that are run, as one script that stops at the first command that fails."""
    run = [block for block in consoles(page) if not block.note]
    return "\n".join(command for block in run for command in block.commands)


RUNNABLE = list({script_of(page): page for page in reversed(pages()) if script_of(page)}.values())[::-1]
"""The pages with a script; of those with the same one, the first."""

ALONE = re.compile(r"(cat|llmkube (plan|router explain)) ")
"""Commands that ask no running program."""


@asynccontextmanager
async def open_page(page, folder):
    """Run `llmkube up` if a command of the page needs it; yield the address of its gateway and the program."""
    if all(ALONE.match(command) for block in consoles(page) if not block.note for command in block.commands):
        yield "", None
        return
    async with open_up(folder, *FREE_PORTS) as up:  # `up start` of a page then finds it running
        _, gateway, _ = await up.urls()
        await up.wait_for("out", "models +none yet")
        yield gateway, up
        if up.process.poll() is None:
            up.process.terminate()
            await up.process.wait()


@pytest.mark.e2e
@pytest.mark.kubectl
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name(page), marks=() if page.name == "README.md" else pytest.mark.ci) for page in RUNNABLE],
)
async def test_the_commands_of_a_page_succeed(page, tmp_path):
    needs_kubectl()
    state = tmp_path / ".local" / "share" / "llmkube"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "models").mkdir()  # below the home of `up`
    shutil.copy(ROOT / "src/llmkube/weights/builtin/demo.gguf", tmp_path / "models" / "my-model.gguf")
    async with open_page(page, tmp_path) as (gateway, up):
        script = settle(script_of(page), gateway, Path(sys.executable).parent)
        env = environment(tmp_path) | {"KUBECONFIG": str(state / "kubeconfig")}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        with trio.fail_after(DEADLINE_SECONDS):
            done = await trio.run_process(
                ["bash", "-exo", "pipefail", "-c", script],
                cwd=tmp_path,
                env=env,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        assert done.returncode == 0, f"{name(page)}:\n{done.stdout.decode()}\n{done.stderr.decode()}\n{up and up.err}"
    assert not engines_in(state)
