"""Clients that `llmkube launch` starts, and settings for those without a command line. Pure.

A client gets its settings by environment and flags alone, which precede its user's own files; these are not edited.
`tests/e2e/test_agents.py` starts claude, codex and opencode; no test runs the clients of the other rows.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import attrs


@attrs.frozen
class Served:
    """A model at the gateway.

    Attributes:
        url: URL of the gateway, without `/v1`.
        model: Value of `model` in requests.
        context: Context of one request in tokens; 0 if it is unknown.
        images: Whether the model takes pictures.
    """

    url: str
    model: str
    context: int = 0
    images: bool = False


class Settings(NamedTuple):
    """Environment variables of a client (None removes an inherited one), and flags, which precede those of its user."""

    variables: Mapping[str, str | None]
    flags: Sequence[str] = ()


class Client(NamedTuple):
    """A client with a command line: how to install it, and its settings for a model."""

    install: str
    settings: Callable[[Served], Settings]


_NO_KEY: Final = "none"
"""For clients that require a key; the gateway requires none on this machine."""


def _claude(served: Served) -> Settings:
    models = [f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")]
    models += ["ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"]
    variables = dict.fromkeys(models, served.model) | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    variables |= {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_AUTH_TOKEN": _NO_KEY}
    variables |= {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context)} if served.context else {}
    precede = json.dumps({"env": variables})  # `env` in its user's settings precedes variables, and this precedes both
    return Settings({**variables, "ANTHROPIC_API_KEY": None}, ("--settings", precede))


def _codex(served: Served) -> Settings:
    provider = {"name": "LLMKube", "base_url": f"{served.url}/v1", "wire_api": "responses"}
    values = {"model": served.model, "model_provider": "llmkube", "model_context_window": served.context or None}
    values |= {f"model_providers.llmkube.{name}": value for name, value in provider.items()}
    return Settings(
        {}, [word for name in values if values[name] for word in ("-c", f"{name}={json.dumps(values[name])}")]
    )


def _opencode(served: Served) -> Settings:
    limit = {"limit": {"context": served.context, "output": served.context // 4}} if served.context else {}
    kinds = {"input": ["text", "image"] if served.images else ["text"], "output": ["text"]}
    model = {"attachment": served.images, "modalities": kinds, **limit}
    options = {"baseURL": f"{served.url}/v1", "apiKey": _NO_KEY}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {served.model: model}}
    name = f"llmkube/{served.model}"
    config = {"provider": {"llmkube": provider}, "model": name, "small_model": name}
    return Settings({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _qwen(served: Served) -> Settings:
    flags = ("--auth-type", "openai", "--model", served.model, "--openai-base-url", f"{served.url}/v1")
    return Settings({"OPENAI_API_KEY": _NO_KEY}, flags)


def _copilot(served: Served) -> Settings:
    others = dict.fromkeys(f"COPILOT_PROVIDER_{name}" for name in ("TYPE", "API_KEY", "BEARER_TOKEN"))
    return Settings({"COPILOT_PROVIDER_BASE_URL": f"{served.url}/v1", "COPILOT_MODEL": served.model, **others})


CLIENTS: Final[Mapping[str, Client]] = {
    "claude": Client("npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Client("npm install -g @openai/codex", _codex),
    "opencode": Client("npm install -g opencode-ai", _opencode),
    "qwen": Client("npm install -g @qwen-code/qwen-code", _qwen),
    "copilot": Client("npm install -g @github/copilot", _copilot),
}
"""By the name of the program."""

OTHERS: Final = """\
OpenAI's API     base URL {url}/v1, any key, model {model}
Anthropic's API  base URL {url}, any key, model {model}
Ollama's API     OLLAMA_HOST={url}, model {model}
VS Code Copilot  github.copilot.chat.byok.ollamaEndpoint: {url}; Manage Models, Ollama, {model}
Continue         config.yaml: provider openai, apiBase {url}/v1, apiKey none, model {model}
Cline, Roo Code  OpenAI Compatible: base URL {url}/v1, any key, model ID {model}
Zed              settings.json: language_models.ollama.api_url: {url}
Open WebUI       OPENAI_API_BASE_URL={url}/v1 OPENAI_API_KEY=none; in a container: the address of `up --listen`
Cursor           Models, Override OpenAI Base URL: its servers connect, so it needs a public https address and a key
"""
"""Settings of other clients; `{url}` and `{model}` are replaced."""

INDENT: Final = " " * 17
"""Indentation of the further lines of a client."""
