"""Finding S10: arguments that bypassed the check of `spec.extraArgs`, as they were found."""

import pytest
import trio

from llmkube.programs.bundled_engine.llama_server import parse
from llmkube.runtimes.llama_flags import read_extra_args
from llmkube.runtimes.plan import PlanError
from sim.world import open_world

ATTACHED = [
    (["-m/path"], "model.path", "/path"),
    (["-c60000"], "n_ctx", 60000),
    (["-re", "on"], "enable_reasoning", 1),
]


@pytest.mark.parametrize(("words", "setting", "value"), ATTACHED)
def test_s10_argparse_takes_what_is_attached(words, setting, value):
    """The attack is real: the bundled engine's parser accepts an attached value and an abbreviated flag."""
    assert parse(["--model", "/m.gguf", *words])[setting] == value


@pytest.mark.parametrize("word", ["-m/path", "-c60000", "-lv5", "-re", "-a,b", "-t=4x\n", "-np64", "-ngl99"])
@pytest.mark.parametrize("before", [[], ["--threads", "1"], ["--mlock"]])
def test_s10_a_word_with_a_dash_is_a_flag_that_is_exactly_known_or_refused(word, before):
    """A flag with something attached is refused at the start, after a value and after a switch."""
    with pytest.raises(PlanError, match=r"spec\.extraArgs"):
        read_extra_args([*before, word])
    with pytest.raises(PlanError, match=r"spec\.extraArgs"):
        read_extra_args([*before, "--temp", word])


LEAKS = {
    "--spec-draft-hf": "download",
    "--gpt-oss-20b-default": "download",
    "--gpt-oss-120b-default": "download",
    "--vision-gemma-4b-default": "download",
    "--vision-gemma-12b-default": "download",
    "--fim-qwen-1.5b-default": "download",
    "--props": "change the engine's settings",
    "--cors-origins": "web pages have to use the gateway",
    "--cors-credentials": "web pages have to use the gateway",
    "--prio": "takes processor time",
    "--prio-batch": "takes processor time",
    "--spec-draft-prio": "takes processor time",
    "-v": "keeps prompts out of the log",
    "--verbose": "keeps prompts out of the log",
    "-lv": "keeps prompts out of the log",
    "--log-prompts-dir": "write to this machine's disk",
    "--tools": "run programs on this machine",
    "--mmproj": "names a file",
}


@pytest.mark.parametrize(("flag", "why"), LEAKS.items())
def test_s10_what_passed_is_refused_with_the_reason(flag, why):
    """No service sets downloads, options of all clients, foreign web pages, priority, or prompts in the log."""
    forms = [[flag], [flag, "x"], [f"{flag}=x"]]
    if flag.startswith("--"):
        forms.append([f"--{flag[2:].replace('-', '_')}", "x"])
    for args in forms:
        with pytest.raises(PlanError) as caught:
            read_extra_args(args)
        assert why in str(caught.value)


async def test_s10_the_edit_is_refused_and_the_running_engine_continues(autojump_clock):
    """The condition names flag, reason and fix; the last valid spec keeps serving, and a corrected spec applies."""
    async with open_world() as world:
        await world.serve()
        for args, text in ((["-c60000"], "-c60000 is not among"), (["--props"], "--props lets every client")):
            await world.apply(extraArgs=args)
            await world.until(world.condition, lambda seen: seen and seen[0] == "False", "Accepted")
            await trio.sleep(60)
            _, reason, message = await world.condition("Accepted")
            assert reason == "Invalid"
            assert message.startswith(f"spec.extraArgs: {text}")
            assert "--allow-engine-flag" in message
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 1
        await world.apply()
        await world.until(world.condition, lambda seen: seen and seen[0] == "True", "Accepted")
        assert len(world.machine.spawned) == 1
