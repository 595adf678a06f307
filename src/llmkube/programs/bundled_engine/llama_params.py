"""The flags that the bundled server supports (`flags.toml`), and the attributes of CommonParams that they set.

Names and meanings are those of llama.cpp's own llama-server
(https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md). Every flag in the table has an effect.
"""

import argparse
import json
import operator
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

DEFAULT_PORT: Final = 8080

Settings = dict[str, Any]
"""Values by attribute of CommonParams."""


class Member(NamedTuple):
    """A member of one of the engine's enumerations, by name, because the engine is imported only to serve."""

    kind: str
    name: str


class Choice:
    """Parser of a word for a member of an enumeration, from a list such as `on auto dio=DIRECT_IO`.

    With `many`, it parses several words separated by commas into a list.
    """

    def __init__(self, kind: str, words: str, *, many: bool = False) -> None:
        pairs = (word.partition("=") for word in words.split())
        self._members = {word: Member(kind, f"{kind.upper()}_{name or word.upper()}") for word, _, name in pairs}
        self._many = many
        self.metavar = "{" + ",".join(self._members) + "}"

    def __call__(self, text: str) -> Member | list[Member]:
        """Parse a value of the command line."""
        words = _words(text) if self._many else [text]
        if unknown := [word for word in words if word not in self._members]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(self._members)}")
        members = [self._members[word] for word in words]
        return members if self._many else members[0]


class Value(NamedTuple):
    """A flag with a value, for one or more attributes of the engine's CommonParams (`a.b` for nested ones)."""

    names: str
    targets: str
    read: Callable[[str], Any]
    help: str
    metavar: str = "N"


class Switch(NamedTuple):
    """A flag without a value, and the attributes that it sets."""

    names: str
    sets: Mapping[str, Any]
    help: str


def _one_of(**values: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(values)}")
        return values[text]

    return read


def _layers(text: str) -> int:
    return {"auto": -1, "all": -2}.get(text) or int(text)


def _stretch(text: str) -> float:
    factor = float(text)
    if factor <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return 1 / factor


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _names(text: str) -> set[str]:
    return set(_words(text))


def _adapters(text: str) -> list[tuple[str, float]]:
    return [(path, float(scale)) for path, _, scale in (word.rpartition(":") for word in _words(text))]


def _numbers(text: str) -> list[float]:
    return [float(word) for word in _words(text)]


def _file(text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {exc}") from exc


def _keys(text: str) -> list[str]:
    lines = (line.strip() for line in _file(text).splitlines())
    if keys := [line for line in lines if line and not line.startswith("#")]:
        return keys
    raise argparse.ArgumentTypeError(f"{text} contains no key")  # with an empty list the engine would need no key


def _template_values(text: str) -> dict[str, str]:
    try:
        values = json.loads(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return {name: json.dumps(value) for name, value in values.items()}  # the engine expects each as JSON text


# Expert weights, as llama.cpp matches them for its own --cpu-moe (LLM_FFN_EXPS_REGEX)
_EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


_TABLE: Final = tomllib.loads(Path(__file__).with_name("flags.toml").read_text("utf-8"))
_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "text": str,
    "int": int,
    "float": float,
    "on_off": _one_of(on=True, off=False),
    "think": _one_of(on=1, off=0, auto=-1),
    "layers": _layers,
    "stretch": _stretch,
    "words": _words,
    "names": _names,
    "numbers": _numbers,
    "adapters": _adapters,
    "seed": lambda text: int(text) % 2**32,  # -1 becomes the engine's value for a random seed
    "file": _file,
    "keys": _keys,
    "template_values": _template_values,
    "first_experts": lambda text: ",".join(rf"blk\.{layer}{_EXPERTS}=CPU" for layer in range(int(text))),
    **{name: Choice(**words) for name, words in _TABLE["words"].items()},
}


def _flag(names: str, row: Mapping[str, Any]) -> Value | Switch:
    if "sets" in row:
        sets = {target: Member(*each) if isinstance(each, list) else each for target, each in row["sets"].items()}
        return Switch(names, sets, row["help"])
    return Value(names, row["to"], _READERS[row["read"]], row["help"], row.get("metavar", "N"))


FLAGS: Final[Mapping[str, tuple[Value | Switch, ...]]] = {
    title: tuple(_flag(names, row) for names, row in rows.items()) for title, rows in _TABLE["flags"].items()
}

# A model file may set its own sampling defaults; the command line has to override them
_USER_SET: Final[Mapping[str, str]] = {
    "sampling.temp": "TEMP",
    "sampling.top_k": "TOP_K",
    "sampling.top_p": "TOP_P",
    "sampling.min_p": "MIN_P",
    "sampling.penalty_repeat": "PENALTY_REPEAT",
}


def record(settings: Settings, flag: Value | Switch, value: Any) -> None:
    """Record the value of a flag; a later value replaces an earlier one, except that tensor overrides are combined."""
    sets = flag.sets if isinstance(flag, Switch) else dict.fromkeys(flag.targets.split(), value)
    for target, new in sets.items():
        earlier = settings.get(target) if target == "tensor_buft_overrides" else None
        settings[target] = f"{earlier},{new}" if earlier else new


def apply(settings: Settings, engine: Any) -> Any:
    """Return the engine's CommonParams with these settings.

    Raises:
        ValueError: The engine rejects a value.
    """
    params = engine.CommonParams()
    params.port = DEFAULT_PORT
    batch_threads = {"cpuparams_batch.n_threads": settings.get("cpuparams.n_threads", -1)}
    for target, value in {**batch_threads, **settings}.items():
        owner, _, name = target.rpartition(".")
        part = operator.attrgetter(owner)(params) if owner else params
        if target == "tensor_split":
            value = [*value, *params.tensor_split[len(value) :]]  # noqa: PLW2901 (the engine expects the full length)
        try:
            setattr(part, name, _resolve(value, engine))
        except (ValueError, OverflowError, TypeError) as exc:
            raise ValueError(f"the engine rejects {value!r} for {target}: {exc}") from exc
        if target in _USER_SET:
            bit = getattr(engine.common_params_sampling_config, f"COMMON_PARAMS_SAMPLING_CONFIG_{_USER_SET[target]}")
            params.sampling.user_sampling_config |= bit.value
    return params


def _resolve(value: Any, engine: Any) -> Any:
    if isinstance(value, Member):
        return getattr(getattr(engine, value.kind), value.name)
    if isinstance(value, tuple):
        adapter = engine.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = value
        return adapter
    return [_resolve(item, engine) for item in value] if isinstance(value, list) else value
