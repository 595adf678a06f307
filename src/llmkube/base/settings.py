"""Declare settings in attrs classes (name, type, default, bounds, help), and resolve their values from all sources.

A value comes from the first of: a flag (`--api-port`), the environment (`LLMKUBE_API_PORT`), `config.toml` (`api_port`,
in the program's own table or above all tables), the default. The error for an invalid value names where it was set.

```python
@attrs.frozen
class Serve:
    api_port: int = setting(7443, help="port of the API server", minimum=0, maximum=65535)

config = read_config(path, {"up": Serve})
serve = resolve(Serve, flags={"api_port": None}, environ=os.environ, config=config, table="up")
```
"""

import difflib
import itertools
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from llmkube.base.errors import UserError

T = TypeVar("T")

PREFIX = "LLMKUBE_"

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
"""Here and not in `log`, since every command line lists them, and most commands never log."""

_METADATA = "llmkube.setting"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


ANY_NAME: Final = ".NAME"
"""End of the name of a class of settings whose tables have names of the user's."""


class SettingError(UserError):
    """A setting has an invalid value; the message begins with where it was set."""


@attrs.frozen
class Setting:
    """One setting, as its class declares it.

    `type` is `str`, `int`, `float`, `bool`, `Path`, `tuple` (of strings) or `Mapping` (only in a file). An annotation
    may also admit None, the default for "not set", which no source can write. `removed` names the replacement for a
    setting of an earlier version: every source that still sets it is rejected.
    """

    name: str
    type: type[Any]
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    in_file: bool = True
    removed: str = ""

    @property
    def flag(self) -> str:
        """Name on the command line: `--api-port`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Name in the environment: `LLMKUBE_API_PORT`."""
        return PREFIX + self.name.upper()


def setting(
    default: Any,
    *,
    help: str,  # noqa: A002 - the usual name in command line libraries
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Iterable[str] = (),
    in_file: bool = True,
) -> Any:
    """Declare an attribute of an attrs class as a setting.

    Args:
        default: Value if no source sets one.
        help: One line for `--help`.
        minimum: Smallest number allowed.
        maximum: Largest number allowed.
        choices: The only values allowed.
        in_file: Whether `config.toml` may set it; the folder that contains that file cannot be one of its settings.
    """
    facts = {"help": help, "minimum": minimum, "maximum": maximum, "choices": tuple(choices), "in_file": in_file}
    return attrs.field(default=default, metadata={_METADATA: facts})


def removed_setting(instead: str) -> Any:
    """Declare a setting of an earlier version: every source that still sets it is rejected.

    Args:
        instead: Replacement for the setting; the end of the error message.
    """
    return attrs.field(default=None, metadata={_METADATA: {"help": f"Removed: {instead}.", "removed": instead}})


def settings_of(kind: type[Any]) -> tuple[Setting, ...]:
    """Return the settings of an attrs class, in the order of their declaration."""
    hints = typing.get_type_hints(kind)
    return tuple(
        Setting(option.name, _plain_type(hints[option.name]), option.default, **option.metadata[_METADATA])
        for option in attrs.fields(kind)
        if _METADATA in option.metadata
    )


@attrs.frozen
class Config:
    """Checked content of a `config.toml`: the common values and those of each table, with TOML's types."""

    path: Path
    common: Mapping[str, Any] = attrs.field(factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)


def read_config(path: Path, known: Mapping[str, type[Any]]) -> Config:
    """Return the settings in the file; none if it does not exist.

    Args:
        path: The file.
        known: Class of settings for each table. A key above all tables must be known to at least one of them. `x.NAME`
            is for the tables `[x.…]` of any name, which have their own keys only.

    Raises:
        SettingError: The file cannot be read, is not TOML, or has an unknown key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Config(path)
    except OSError as exc:
        raise SettingError(f"{path}: cannot be read ({exc.strerror}); make it readable or move it away") from exc
    except UnicodeDecodeError as exc:
        raise SettingError(f"{path}: is not UTF-8 text; save it as UTF-8") from exc
    except tomllib.TOMLDecodeError as exc:
        raise SettingError(f"{path}: is not TOML: {exc}") from exc
    settings = {table: {option.name: option for option in settings_of(kind)} for table, kind in known.items()}
    programs = [names for table, names in settings.items() if not table.endswith(ANY_NAME)]
    everywhere = {name: option for names in programs for name, option in names.items()}
    common, tables = {}, {}
    for key, value in content.items():
        named = settings.get(key + ANY_NAME)
        if isinstance(value, dict) and (key in settings or named is not None):
            for table, values in [(key, value)] if named is None else [(f"{key}.{n}", v) for n, v in value.items()]:
                if not isinstance(values, dict):
                    raise SettingError(f"{path}: {table}: {values!r} is not a table; write it as [{key}.NAME]")
                for name in values:
                    _check_key(f"{path}: {table}.{name}", name, named or settings[key])
                tables[table] = values
        else:
            _check_key(f"{path}: {key}", key, everywhere)
            common[key] = value
    return Config(path, common, tables)


def resolve(
    kind: type[T],
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config: Config | None = None,
    table: str = "",
) -> T:
    """Return an instance of `kind`, with each setting from the first source that sets it.

    Args:
        kind: An attrs class whose attributes are declared with `setting`.
        flags: Values by setting name; None (or an empty tuple) means that the flag was not given.
        environ: The environment. An empty variable is treated as not set.
        config: Result of `read_config`, if there is a file.
        table: Table of this program in the file.

    Raises:
        SettingError: A value has the wrong type or is out of bounds, or two ports at the same address are equal.
    """
    options = settings_of(kind)
    found = kind(**{option.name: _resolve_option(option, flags, environ, config, table) for option in options})
    for one, other in itertools.combinations([each for each in options if each.name.endswith("port")], 2):
        port = getattr(found, one.name)
        hosts = {getattr(found, each.name.replace("port", "host"), "") for each in (one, other)}
        is_unused = one.minimum and port == one.default  # the port of another program, which may not run
        if port and port == getattr(found, other.name) and not is_unused and (len(hosts) == 1 or "::" in hosts):
            raise SettingError(f"{other.flag}: {port} is also the port of {one.flag}; set one of them to another port")
    return found


def _resolve_option(
    option: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], config: Config | None, table: str
) -> Any:
    if option.removed:
        return _refuse_removed(option, flags, environ, config, table)
    given = flags.get(option.name)
    if given is not None and given != ():
        return _from_text(option, given, option.flag)
    if variable := environ.get(option.variable, "").strip():
        return _from_text(option, variable.split(",") if option.type is tuple else variable, option.variable)
    if config is not None and option.in_file:
        own = config.tables.get(table, {})
        if option.name in own:
            return _from_toml(option, own[option.name], f"{config.path}: {table}.{option.name}", config.path.parent)
        if option.name in config.common:
            return _from_toml(option, config.common[option.name], f"{config.path}: {option.name}", config.path.parent)
    return option.default


def _refuse_removed(
    option: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], config: Config | None, table: str
) -> None:
    sources = {option.flag: flags.get(option.name), option.variable: environ.get(option.variable, "").strip() or None}
    if config is not None:
        sources[f"{config.path}: {table}.{option.name}"] = config.tables.get(table, {}).get(option.name)
        sources[f"{config.path}: {option.name}"] = config.common.get(option.name)
    for where, value in sources.items():
        if value is not None:
            raise SettingError(f"{where}: {value!r} is rejected: the setting was removed; {option.removed}")


def _from_text(option: Setting, value: Any, where: str) -> Any:
    """Parse a value from the command line or the environment: text, except for switches and repeated flags."""
    if option.type is tuple:
        return _checked(option, tuple(item.strip() for item in value if item.strip()), where)
    if isinstance(value, bool):
        return value
    text = str(value).strip()
    if option.type is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise SettingError(f'{where}: "{text}" is neither true nor false; write true or false')
    if option.type in {int, float}:
        try:
            return _checked(option, option.type(text), where)
        except ValueError:
            raise SettingError(f'{where}: "{text}" is not {_expected(option)}') from None
    return _checked(option, Path(text).expanduser() if option.type is Path else text, where)


def _from_toml(option: Setting, value: Any, where: str, folder: Path) -> Any:
    if option.type is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return _checked(option, tuple(value), where)
    elif option.type is Mapping:
        if isinstance(value, dict):
            return {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
    elif option.type is Path:
        if isinstance(value, str):
            return _checked(option, folder / Path(value).expanduser(), where)  # a relative path is relative to its file
    elif option.type is float and type(value) is int:
        return _checked(option, float(value), where)
    elif type(value) is option.type:  # not isinstance: True is an int to Python
        return _checked(option, value, where)
    shown = re.sub(r"(?<=//)[^'\"]*@", "", repr(value))  # without credentials in URLs
    raise SettingError(f"{where}: {shown} is not {_expected(option)}")


def _checked(option: Setting, value: Any, where: str) -> Any:
    if option.type in {int, float}:
        low = -math.inf if option.minimum is None else option.minimum
        high = math.inf if option.maximum is None else option.maximum
        if not (
            math.isfinite(value) and low <= value <= high
        ):  # NaN and infinity are no usable values, such as for a deadline
            raise SettingError(f"{where}: {value} is not {_expected(option)}")
    if option.choices:
        for text in value if option.type is tuple else (value,):
            if text not in option.choices:
                allowed = ", ".join(option.choices)
                raise SettingError(f'{where}: "{text}" is not one of {allowed}{_hint(text, option.choices)}')
    return value


def _expected(option: Setting) -> str:
    nouns = {
        str: "a text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "a path in quotes",
        Mapping: "a table",
    }
    noun = nouns.get(option.type, "a list of texts")
    if option.minimum is not None and option.maximum is not None:
        return f"{noun} from {option.minimum} to {option.maximum}"
    if option.minimum is not None:
        return f"{noun} of at least {option.minimum}"
    return noun


def _check_key(where: str, name: str, known: Mapping[str, Setting]) -> None:
    if name not in known:
        raise SettingError(f"{where}: there is no such setting{_hint(name, known)}")
    if not known[name].in_file:
        raise SettingError(f"{where}: cannot be set here; use {known[name].flag} or {known[name].variable}")


def _hint(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word.replace("-", "_"), list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _plain_type(hint: Any) -> type[Any]:
    """Return the bare type of an annotation: int for `int | None`, tuple for `tuple[str, ...]`, str for a Literal."""
    origin = typing.get_origin(hint)
    if origin in {types.UnionType, typing.Union}:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        if len(members) != 1:
            raise TypeError(f"a setting has one type, not {hint}")
        return _plain_type(members[0])
    if origin is typing.Literal:
        return str
    bare: type[Any] = origin or hint
    return bare
