"""Rebuilds request bodies for backends from allow-lists of fields, so that no client can pass a URL or a key.

Providers get listed fields only, at every depth. Engines of ours also get fields of llama.cpp's server and others, from
a second list. No backend fetches anything for a client: images are embedded in the request (`data:`). Pure.
"""

import functools
from collections.abc import Mapping
from types import UnionType
from typing import Any, Final

import attrs
import orjson

from llmkube.router.budgets.meter import with_most_tokens
from llmkube.router.config.compile_backend import DEFAULT_URLS
from llmkube.router.config.routing_config import Backend
from llmkube.router.continuation.continuable import obstacle
from llmkube.router.dialects.dialect import DialectError, check_kinds, objects_in
from llmkube.router.dialects.engine_form import engine_body
from llmkube.router.dialects.messages_backend import messages_request


class BodyError(Exception):
    """A body is refused; the message is for the client.

    Attributes:
        code: Error code.
    """

    def __init__(self, message: str, code: str = "invalid_json") -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen
class _ListOf:
    """A list of a shape, or one scalar."""

    each: "Shape"


class _Leaf:
    """A value without named members."""


Shape = _Leaf | _ListOf | Mapping[str, "Shape"]

PLAIN: Final = _Leaf()
"""A scalar, or lists of scalars."""

DATA_URL: Final = _Leaf()
"""A `data:` URL."""

FREE: Final = _Leaf()
"""Arbitrary JSON that only the model interprets, such as the schema of a tool's arguments."""

NUMBERS: Final = _Leaf()
"""An object of numbers by token ID."""

STRINGS: Final = _Leaf()
"""An object of strings."""


def _plain(*names: str) -> dict[str, Shape]:
    return dict.fromkeys(names, PLAIN)


_CACHE_CONTROL: Final[Shape] = _plain("type", "ttl")
_PART: Final[Shape] = {
    **_plain("type", "text", "refusal"),
    "image_url": {"url": DATA_URL, "detail": PLAIN},
    "input_audio": _plain("data", "format"),
    "file": _plain("file_data", "filename"),
    "cache_control": _CACHE_CONTROL,
}
_CALL: Final[Shape] = _plain("name", "arguments")
_FUNCTION: Final[Shape] = {**_plain("name", "description", "strict"), "parameters": FREE}
_SAMPLING: Final[Mapping[str, Shape]] = {
    **_plain("model", "frequency_penalty", "max_tokens", "n", "presence_penalty", "seed", "stop", "stream"),
    **_plain("temperature", "top_p", "user"),
    "logit_bias": NUMBERS,
    "stream_options": _plain("include_usage"),
}
_MESSAGE: Final[Mapping[str, Shape]] = {
    **_plain("role", "name", "refusal", "reasoning_content", "tool_call_id"),
    "content": _ListOf(_PART),
    "tool_calls": _ListOf({**_plain("id", "type", "index"), "function": _CALL}),
    "function_call": _CALL,
    "audio": _plain("id"),
}
_CHAT: Final[Mapping[str, Shape]] = {
    **_SAMPLING,
    **_plain("logprobs", "max_completion_tokens", "modalities", "parallel_tool_calls", "prompt_cache_key"),
    **_plain("reasoning_effort", "safety_identifier", "service_tier", "top_logprobs", "verbosity"),
    "messages": _ListOf(_MESSAGE),
    "audio": _plain("voice", "format"),
    "function_call": _plain("name"),
    "functions": _ListOf(_FUNCTION),
    "metadata": STRINGS,
    "prediction": {"type": PLAIN, "content": _ListOf(_plain("type", "text"))},
    "response_format": {"type": PLAIN, "json_schema": {**_plain("name", "description", "strict"), "schema": FREE}},
    "tool_choice": {"type": PLAIN, "function": _plain("name")},
    "tools": _ListOf({"type": PLAIN, "function": _FUNCTION, "cache_control": _CACHE_CONTROL}),
}
_NESTED: Final = frozenset({dict, list})

MAX_DEPTH: Final = 64
"""Nesting of objects and lists, outside values that only the model interprets."""

COUNT_TOKENS: Final = "/messages/count_tokens"
FIELDS: Final[Mapping[str, Mapping[str, Shape]]] = {
    "/chat/completions": _CHAT,
    "/completions": {**_SAMPLING, **_plain("prompt", "best_of", "echo", "logprobs", "suffix")},
    "/embeddings": _plain("model", "input", "dimensions", "encoding_format", "user"),
    "/rerank": {**_plain("model", "query", "top_n", "return_documents"), "documents": _ListOf(_plain("text"))},
    COUNT_TOKENS: _CHAT,
}
"""Allowed fields of a request to a provider, by path below `/v1`, before translation to another dialect."""

_ENGINE_FIELDS: Final = frozenset(
    (
        # llama.cpp's server
        *("adaptive_decay", "adaptive_target", "cache_prompt", "dry_allowed_length", "dry_base", "dry_multiplier"),
        *("dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "dynatemp_range", "grammar"),
        *("grammar_lazy", "grammar_triggers", "id_slot", "ignore_eos", "json_schema", "lora", "min_keep", "min_p"),
        *("mirostat", "mirostat_eta", "mirostat_tau", "n_cache_reuse", "n_cmpl", "n_discard", "n_indent", "n_keep"),
        *("n_predict", "n_probs", "parse_tool_calls", "post_sampling_probs", "preserved_tokens", "reasoning_budget"),
        *("reasoning_format", "repeat_last_n", "repeat_penalty", "return_progress", "return_tokens", "samplers"),
        *("t_max_predict_ms", "thinking_forced_open", "timings_per_token", "top_k", "top_n_sigma", "typical_p"),
        *("xtc_probability", "xtc_threshold"),
        # vLLM, SGLang, mlx-lm and Ollama
        *("add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt"),
        *("chat_template_kwargs", "continue_final_message", "ebnf", "enable_thinking", "guided_choice"),
        *("guided_grammar", "guided_json", "guided_regex", "include_reasoning", "include_stop_str_in_output"),
        *("length_penalty", "min_tokens", "prompt_logprobs", "reasoning", "regex", "repetition_context_size"),
        *("repetition_penalty", "return_token_ids", "return_tokens_as_token_ids", "separate_reasoning"),
        *("skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "stream_reasoning"),
        *("structured_outputs", "think", "thinking_token_budget", "truncate_prompt_tokens", "use_beam_search"),
        # embedding and reranking engines
        *("embd_normalize", "input_type", "max_tokens_per_doc", "normalize", "raw_scores", "return_text", "task"),
        *("texts", "truncate"),
    )
)
"""Additional fields for engines of ours: sampling parameters and output options.

Excluded are fields that name a file, a model or a host (`draft_model` and `adapters` of mlx-lm, `kv_transfer_params` of
vLLM, `bootstrap_host` and `lora_path` of SGLang), contain code (`chat_template`, `custom_logit_processor`), or jump the
engine's queue (`priority`).
"""

STREAMING: Final = frozenset({"/chat/completions", "/completions"})
"""Paths where a model generates text, as a stream if the client requests one."""
_METADATA_PROVIDERS: Final = frozenset({"openai"})
"""Providers that only store `metadata`. Other gateways take instructions from it."""


_NUMBER_FIELDS: Final = (
    *("best_of", "dimensions", "frequency_penalty", "max_completion_tokens", "max_tokens", "min_p", "n", "n_predict"),
    *("presence_penalty", "repeat_last_n", "repeat_penalty", "seed", "temperature", "top_k", "top_logprobs", "top_n"),
    *("top_p", "typical_p"),
)
_STRING_FIELDS: Final = (
    *("encoding_format", "prompt_cache_key", "query", "reasoning_effort", "safety_identifier", "service_tier"),
    *("suffix", "user", "verbosity"),
)
_FIELD_TYPES: Final[Mapping[str, type | UnionType]] = {
    **dict.fromkeys(_NUMBER_FIELDS, int | float),
    **dict.fromkeys(_STRING_FIELDS, str),
    **dict.fromkeys(("echo", "parallel_tool_calls", "return_documents"), bool),
    **dict.fromkeys(("response_format", "stream_options"), dict),
    **dict.fromkeys(("documents", "input", "prompt"), str | list),
    "tool_choice": str | dict,
}
"""Types without which llama.cpp's server returns 500, which its circuit would count as a failure."""
_MESSAGE_STRINGS: Final[Mapping[str, type | UnionType]] = {"role": str, "name": str, "tool_call_id": str}
_MESSAGE_OBJECTS: Final = frozenset({"content", "tool_calls"})
"""Lists of objects; a content may also be a string."""


def check_types(body: Mapping[str, Any]) -> None:
    """Refuse fields of a type that no backend accepts; null is treated as absent.

    Raises:
        DialectError: A field has the wrong type; the message names it and the right type.
    """
    check_kinds(body, _FIELD_TYPES)
    for at, turn in enumerate(objects_in(body.get("messages"), "messages")):
        for name, value in turn.items():
            if type(value) is str and name != "tool_calls":
                continue  # the right type of every other field
            if name in _MESSAGE_STRINGS:
                check_kinds({name: value}, _MESSAGE_STRINGS, f"messages[{at}].")
            elif name in _MESSAGE_OBJECTS:
                objects_in(value, f"messages[{at}].{name}")
    objects_in(body.get("tools"), "tools")
    stop = body.get("stop")
    if not isinstance(stop, str | None) and not (isinstance(stop, list) and all(isinstance(one, str) for one in stop)):
        raise DialectError(f"stop is {stop!r:.80}; write a string or a list of strings, or omit it")


def parse_body(body: bytes, other_name: str = "") -> dict[str, Any]:
    """Parse a body in any dialect.

    Args:
        body: The body.
        other_name: Field that is read as `model` if that is missing.

    Raises:
        BodyError: It is not a JSON object with a `model`, or `stream` is invalid.
    """
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise BodyError(f"the body must be a JSON object: {exc}") from exc
    if not isinstance(parsed, dict):
        raise BodyError("the body must be a JSON object")
    model = parsed.get("model")
    if not model and other_name in parsed:
        model = parsed["model"] = parsed[other_name]
    if not isinstance(model, str) or not model:
        raise BodyError('"model" must be a string; GET /v1/models lists the models', "invalid_model")
    if not isinstance(parsed.get("stream"), bool | None):
        raise BodyError('"stream" must be true or false', "invalid_value")
    return parsed


def refuse_urls(body: Mapping[str, Any]) -> None:
    """Refuse content that would have to be fetched for the client.

    Raises:
        BodyError: The body contains a URL other than `data:`, or is nested too deeply.
    """
    if where := _find_url(body, None, MAX_DEPTH):
        message = (
            f"{_text_of(where)} must be a data: URL; the router fetches nothing for clients, so send the content itself"
        )
        raise BodyError(message, "url_not_allowed")


@attrs.frozen
class BackendRequest:
    """Request for one backend.

    Attributes:
        path: Path below the backend's base URL.
        dropped: Fields of the client's request that were left out, for the audit log.
        usage_added: Whether the router added a request for usage, which must be hidden from the client.
    """

    path: str
    body: bytes
    dropped: tuple[str, ...] = ()
    usage_added: bool = False


def rebuild(path: str, client_body: Mapping[str, Any], backend: Backend) -> BackendRequest:
    """Rebuild a request for one backend.

    Args:
        path: Path below `/v1`.
        client_body: Parsed body.
        backend: Receiver.

    Raises:
        DialectError: It cannot be translated to the backend's dialect.
    """
    dropped: list[str] = []
    if backend.provider:
        body = _object(client_body, _shape_for(path, backend.dialect, backend.provider), None, dropped)
    else:
        known = FIELDS[path]
        body = {name: each for name, each in client_body.items() if name in known or name in _ENGINE_FIELDS}
        if len(body) < len(client_body):
            dropped += [name for name in client_body if name not in body]
        body = dict(engine_body(body, dropped, is_llama_cpp=bool(backend.model_digest)))
    if backend.model:
        body["model"] = backend.model
    if backend.max_answer_tokens and path in STREAMING:
        body = dict(with_most_tokens(body, backend.max_answer_tokens))
    if backend.base_url == DEFAULT_URLS["openai"] and path == "/chat/completions" and "max_tokens" in body:
        # OpenAI's newer models refuse the older name, which other dialects and budgets use
        body["max_completion_tokens"] = body.get("max_completion_tokens", body.pop("max_tokens"))
    usage_added = False
    if path in STREAMING and body.get("stream"):
        options = body.get("stream_options")
        options = dict(options) if isinstance(options, dict) else {}
        usage_added = options.get("include_usage") is not True
        body["stream_options"] = options | {"include_usage": True}
        if backend.model_digest and not obstacle(path, body):
            body.setdefault("timings_per_token", True)  # to know how many tokens an engine wrote before it died
    if uses_messages_api(path, backend):
        count = path == COUNT_TOKENS
        path = COUNT_TOKENS if count else "/messages"
        body, left_out = messages_request(body, count=count)
        dropped += left_out
    try:
        written = orjson.dumps(body)
    except orjson.JSONEncodeError as exc:
        raise DialectError(f"the body is nested too deeply: {exc}") from exc
    return BackendRequest(path, written, tuple(dropped), usage_added)


@functools.lru_cache(maxsize=256)
def _shape_for(path: str, dialect: str, provider: str) -> Mapping[str, Shape]:
    """Return the allowed fields of a request to a provider."""
    shape = FIELDS[path]
    if dialect == "anthropic":
        shape = {**shape, "top_k": PLAIN, "messages": _ListOf({**_MESSAGE, "is_error": PLAIN})}
    if provider not in _METADATA_PROVIDERS:
        shape = {name: each for name, each in shape.items() if name != "metadata"}
    return shape


def uses_messages_api(path: str, backend: Backend) -> bool:
    """Return whether the request uses Anthropic's Messages API: for Anthropic backends, and to count tokens.

    llama.cpp's server implements it as well, and counts tokens only there.
    """
    return backend.dialect == "anthropic" or path == COUNT_TOKENS


_Place = tuple["_Place | None", str | int]
"""Path of a member: that of its parent, and its name or index; a text is only made of it for an error or a log."""


def _find_url(value: Mapping[str, Any] | list[Any], where: _Place | None, depth_left: int) -> _Place | None:
    """Return the first member with a URL that would have to be fetched; None if there is none.

    Such URLs are values of `_URL_FIELDS`, or of `_BASE64_FIELDS` in place of the content.

    Raises:
        BodyError: It is nested too deeply.
    """
    if depth_left < 0:
        raise BodyError(f"the body is nested more than {MAX_DEPTH} deep, at {_text_of(where)[:80]}…", "invalid_value")
    for name, each in enumerate(value) if type(value) is list else value.items():  # type: ignore[union-attr]
        if type(each) is str:
            if name in _FETCHED_FIELDS and not each.startswith("data:") and (name in _URL_FIELDS or ":" in each):
                return where, name
        elif type(each) in _NESTED and name not in _OPAQUE_FIELDS:
            found = _find_url(each, (where, name), depth_left - 1)
            if found is not None:
                return found
    return None


def _text_of(where: _Place | None) -> str:
    if where is None:
        return ""
    parent, name = where
    if isinstance(name, int):
        return f"{_text_of(parent)}[{name}]"
    return f"{_text_of(parent)}.{name}" if parent else name


_OPAQUE_FIELDS: Final = frozenset({"parameters", "schema", "json_schema", "arguments", "grammar", "metadata"})
"""Fields that only the model interprets, whatever their members are called."""

_BASE64_FIELDS: Final = frozenset({"data", "file_data"})
"""Base64 fields: a value with a colon may be a URL, which a gateway would fetch."""

_URL_FIELDS: Final = frozenset({"url", "image_url", "audio_url", "video_url", "file_url", "server_url"})
_FETCHED_FIELDS: Final = _URL_FIELDS | _BASE64_FIELDS


def _object(
    value: Mapping[str, Any], shape: Mapping[str, Shape], where: _Place | None, dropped: list[str]
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, each in value.items():
        part, is_nested = shape.get(name), type(each) in _NESTED
        if part is None or ((is_nested or part is DATA_URL) and not _fits(each, part)):
            dropped.append(_text_of((where, name)))
        else:
            kept[name] = _filtered(each, part, (where, name), dropped) if is_nested else each
    return kept


def _filtered(value: Any, shape: Shape, where: _Place, dropped: list[str]) -> Any:
    if type(value) is dict and isinstance(shape, dict):
        return _object(value, shape, where, dropped)
    if type(value) is not list or not isinstance(shape, _ListOf):
        return value
    kept, each = [], shape.each
    for at, one in enumerate(value):
        if type(one) is dict and isinstance(each, dict):
            kept.append(_object(one, each, (where, at), dropped))
        elif _fits(one, each):
            kept.append(_filtered(one, each, (where, at), dropped))
        else:
            dropped.append(_text_of((where, at)))
    return kept


def _fits(value: Any, shape: Shape) -> bool:
    if shape is FREE:
        return True
    if isinstance(value, dict):
        if shape is NUMBERS:
            return all(name.isdigit() and isinstance(each, int | float) for name, each in value.items())
        if shape is STRINGS:
            return all(isinstance(each, str) for each in value.values())
        return isinstance(shape, dict)
    if isinstance(value, list):
        return isinstance(shape, _ListOf) or (shape is PLAIN and all(_fits(each, PLAIN) for each in value))
    if shape is DATA_URL:
        return isinstance(value, str) and value.startswith("data:")
    return True
