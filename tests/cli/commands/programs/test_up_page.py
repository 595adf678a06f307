"""Deployments that the page asks for: read as the command line is, with its errors, and nothing else."""

import pytest

from llmkube.base.errors import LLMKubeError
from llmkube.cli.commands.programs.up_page import deploy_model, fit, list_models
from llmkube.programs.config import UpConfig
from llmkube.supervisor.memory.budget import host_budget

BUDGET = host_budget(16 << 30)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"service": "--help", "source": "builtin://demo"}, "is not a valid name"),
        ({"service": "a/../b", "source": "builtin://demo"}, "is not a valid name"),
        ({"service": "chat", "source": "ftp://host/x.gguf"}, "--source"),
        ({"service": "chat", "source": "/etc/passwd\0"}, ""),
        ({"service": "chat", "source": ["--image=evil"]}, ""),
        ({"service": "chat", "source": "builtin://demo", "contextSize": "1 --image=evil"}, "--context-size"),
        ({"service": "chat", "source": "builtin://demo", "contextSize": -1}, "--context-size"),
        ({"service": "chat"}, "the catalog has no model chat"),
        ({"service": "chat", "source": "/etc/passwd"}, "/etc/passwd"),
        ({"service": "chat", "source": "/missing.gguf"}, "there is no file /missing.gguf"),
    ],
)
async def test_what_the_command_line_refuses_is_refused_with_its_error(wanted, words):
    """No option but the source and the context can be set, and no object is written."""
    with pytest.raises(LLMKubeError, match=words or None):
        await fit(wanted, BUDGET, UpConfig())
    if "/" not in wanted.get("source", ["/"])[:1]:
        with pytest.raises(LLMKubeError, match=words or None):
            await deploy_model(wanted, None, None)


async def test_the_fit_is_that_of_the_command():
    """Of a model in the catalog without a download; of a file by its header."""
    name = list_models()[0]["name"]
    listed = await fit({"service": name, "source": "", "contextSize": None}, BUDGET, UpConfig())
    assert (listed["context"], listed["budgetBytes"]) == (8192, BUDGET.limit_bytes)
    demo = await fit({"service": "x", "source": "builtin://demo", "contextSize": 256}, BUDGET, UpConfig())
    assert (demo["fits"], demo["context"], any("It fits" in line for line in demo["lines"])) == (True, 256, True)
