"""`llmkube benchmark` against a real engine behind the gateway of a real `llmkube up`."""

import json

import pytest

from e2e.up_process import open_machine

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

DEPLOY = ("deploy", "demo", "--source", "builtin://demo", "--context-size", "512", "--extra-arg=--threads=1")


async def test_the_demo_is_measured_through_the_gateway(tmp_path):
    """The engine's own counts agree with the options, and a prompt beyond the context is an error with its words."""
    out = tmp_path / "run.json"
    async with open_machine(tmp_path) as (_, run):
        assert (await run(*DEPLOY))[0] == 0
        sizes = ("--sweep", "64,2000", "--answer-tokens", "8", "--ignore-eos", "--concurrency", "2", "--requests", "4")
        code, text, err = await run("benchmark", *sizes, "--out", str(out))
        assert (code, "HTTP 400: request" in text) == (1, True), err
        short, long = json.loads(out.read_text())["loads"]
        assert (short["succeeded"], short["errors"], long["succeeded"]) == (4, {}, 0)
        assert (short["meanAnswerTokens"], short["tokensCountedBy"]) == (8, "usage")
        assert short["meanPromptTokens"] == pytest.approx(64, rel=0.25)
        assert short["latency"]["p50"] >= short["timeToFirstToken"]["p50"] > 0
