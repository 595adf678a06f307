"""Settings that a command adds to a `config.toml`; what its owner has written there, comments too, stays as it is."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from llmkube.base.private_files import write_private
from llmkube.base.settings import SettingError, read_config, resolve
from llmkube.programs.config import TABLES

FILE = "config.toml"


@attrs.frozen
class Addition:
    """What is to stand in a program's settings, and its file as it then is.

    Attributes:
        file: The file; it need not be there.
        added: Texts of a list, or names of settings, that were not in force.
        text: All of the file.
    """

    file: Path
    added: tuple[str, ...]
    text: str

    def write(self) -> None:
        """Write the file, if something was added.

        Raises:
            OSError: The disk does not take it.
        """
        if self.added:
            write_private(self.file.resolve(), self.text)  # a link to the file stays one


def plan_addition(folder: Path, table: str, name: str, texts: Sequence[str]) -> Addition:
    """Return how a list in a program's table becomes one with these texts, too.

    What stands above all tables counts for a program whose own table has no list: it goes on to count.

    Raises:
        SettingError: The file cannot be read, or has something that is no setting.
    """
    config = read_config(folder / FILE, TABLES)
    before = getattr(resolve(TABLES[table], flags={}, environ={}, config=config, table=table), name)
    added = tuple(dict.fromkeys(each for each in texts if each not in before))
    plan = plan_settings(folder, table, {name: [*before, *added]} if added else {})
    return attrs.evolve(plan, added=added)


def plan_settings(folder: Path, table: str, values: Mapping[str, Any]) -> Addition:
    """Return how a program's table becomes one that says these values, in place of what it said of them.

    Args:
        folder: The state directory.
        table: The program's.
        values: By setting, as TOML has them.

    Raises:
        SettingError: The file cannot be read, or has something that is no setting.
    """
    import tomlkit  # noqa: PLC0415 - few commands edit, and all would wait for its import
    from tomlkit.items import Array  # noqa: PLC0415 - the same

    file = folder / FILE
    own = read_config(file, TABLES).tables.get(table, {})
    changed = {name: value for name, value in values.items() if name not in own or own[name] != value}
    old = file.read_text("utf-8") if file.exists() else ""
    if not changed:
        return Addition(file, (), old)
    document = tomlkit.parse(old)
    section: Any = document.setdefault(table, tomlkit.table())
    for name, value in changed.items():
        found = section.get(name)
        if isinstance(found, Array) and value[: len(found)] == found.unwrap():
            found.extend(value[len(found) :])  # comments between its items stay
        else:
            section[name] = value
    text, content = tomlkit.dumps(document), tomllib.loads(old)
    if tomllib.loads(text) != {**content, table: {**content.get(table, {}), **changed}}:
        problem = "; ".join(
            f"{table}.{name} cannot be added in this file; write there {value}" for name, value in changed.items()
        )
        raise SettingError(f"{file}: {problem}")
    return Addition(file, tuple(changed), text)
