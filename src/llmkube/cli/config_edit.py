"""Edits of `config.toml` by commands; the rest of the file, including comments, is preserved."""

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
    """A planned edit of a program's settings.

    Attributes:
        file: The file; it may not exist.
        added: New items of a list, or names of changed settings.
        text: The whole file after the edit.
    """

    file: Path
    added: tuple[str, ...]
    text: str

    def write(self) -> None:
        """Write the file, if anything was added.

        Raises:
            OSError: The file cannot be written.
        """
        if self.added:
            write_private(self.file.resolve(), self.text)  # keep a symbolic link to the file


def plan_addition(folder: Path, table: str, name: str, texts: Sequence[str]) -> Addition:
    """Plan the addition of texts to a list in a program's table.

    If the table has no such list, the new one starts with the list above all tables, which applied until now.

    Raises:
        SettingError: The file cannot be read, or has an unknown or invalid setting.
    """
    config = read_config(folder / FILE, TABLES)
    before = getattr(resolve(TABLES[table], flags={}, environ={}, config=config, table=table), name)
    added = tuple(dict.fromkeys(each for each in texts if each not in before))
    plan = plan_settings(folder, table, {name: [*before, *added]} if added else {})
    return attrs.evolve(plan, added=added)


def plan_settings(folder: Path, table: str, values: Mapping[str, Any]) -> Addition:
    """Plan to set these values in a program's table.

    Args:
        folder: The state directory.
        table: Name of the program's table.
        values: TOML values by setting.

    Raises:
        SettingError: The file cannot be read, or has an unknown or invalid setting.
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
            found.extend(value[len(found) :])  # preserves comments between the items
        else:
            section[name] = value
    text, content = tomlkit.dumps(document), tomllib.loads(old)
    if tomllib.loads(text) != {**content, table: {**content.get(table, {}), **changed}}:
        problem = "; ".join(
            f"{table}.{name} cannot be added to this file; set it to {value} there" for name, value in changed.items()
        )
        raise SettingError(f"{file}: {problem}")
    return Addition(file, tuple(changed), text)
