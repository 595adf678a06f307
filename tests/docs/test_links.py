"""Targets of links exist: files, anchors, paths of the repository, commands with their options."""

import re
import shlex
from pathlib import Path

import click

from docs.pages import ROOT, anchors, blocks, name, pages, prose
from llmkube.cli.main import cli

# A word in backquotes that begins like these is a path. A room of the package may be named without `src/llmkube/`.
_FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "charts")
_ROOMS = tuple(path.name for path in (ROOT / "src" / "llmkube").iterdir() if (path / "__init__.py").exists())
_PATH = re.compile(rf"(?:{'|'.join((*_FOLDERS, *_ROOMS))})/[\w./-]+")
PRESENT = [page for page in pages() if page.name != "CHANGELOG.md"]  # which names what was there at the time
_INLINE = re.compile(r"`([^`\n]+)`")


def _exists(path: str, page: Path) -> bool:
    bare = path.rstrip("/.")
    room = ROOT / "src" / "llmkube" / bare
    # `supervisor/host/procfs.read_stat` names a function of a module.
    of_module = ROOT / "src" / "llmkube" / bare.rpartition(".")[0]
    return (
        (ROOT / bare).exists()
        or (page.parent / bare).exists()
        or room.exists()
        or any(p.with_suffix(".py").exists() for p in (room, of_module))
    )


def test_every_link_leads_somewhere():
    for page in pages():
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if re.match(r"https?://|mailto:", target):
                continue  # what other hosts serve is not this repository's to test
            path, _, anchor = target.partition("#")
            linked = page if path == "" else (page.parent / path).resolve()
            assert linked.exists(), f"{name(page)} links to {target}, and there is no such file"
            if anchor:
                assert anchor in anchors(linked), f"{name(page)} links to {target}, and that page has no such heading"


def test_every_path_is_in_the_tree():
    for page in PRESENT:
        missing = [word for word in _INLINE.findall(prose(page)) if _PATH.fullmatch(word) and not _exists(word, page)]
        assert not missing, f"{name(page)} names {', '.join(missing)}, which the tree does not have"


def _commands(page):
    """Every `llmkube …` that the page shows, in backquotes or at a prompt."""
    for word in _INLINE.findall(prose(page)):
        if word.startswith("llmkube "):
            yield word
    for block in blocks(page):
        for line in block.commands if block.language == "console" else ():
            for part in re.split(r"[|;&<>()]", line.partition(" #")[0]):
                found = re.match(r"\s*(?:\S*/)?(llmkube .*)", part, re.DOTALL)
                if found:
                    yield found[1].replace("\\\n", " ")


def _complaint(command):
    """Say which word of the command the program would not know; None if it knows all."""
    group, words = cli, shlex.split(command)[1:]
    context = click.Context(cli)
    while words and isinstance(group, click.Group) and not words[0].startswith("-"):
        if re.fullmatch(r"[A-Z…|]+|\S+\|\S+", words[0]):
            return None  # a placeholder, or several commands at once
        found = group.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]!r}" if words[0].isidentifier() else None
        group, words = found, words[1:]
    known = {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    unknown = [option for option in given if option not in known | {"--help", "--version"}]
    return f"no option {unknown[0]}" if unknown else None


def test_every_command_is_one_that_the_program_knows():
    for page in PRESENT:
        wrong = [f"`{command}`: {words}" for command in _commands(page) if (words := _complaint(command)) is not None]
        assert not wrong, f"{name(page)}: {'; '.join(wrong)}"


def test_every_make_target_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        shown = {word for word in _INLINE.findall(prose(page)) if word.startswith("make ")}
        shown |= {line for block in blocks(page) for line in block.commands if line.startswith("make ")}
        for command in shown:
            words = [word for word in shlex.split(command, comments=True)[1:] if re.fullmatch(r"[a-z][a-z-]+", word)]
            assert set(words) <= targets, f"{name(page)} shows `{command}`, and the Makefile has no such target"


def test_every_test_of_a_finding_exists():
    """A row of tests/findings.md names files of tests, or functions in them."""
    tables = (ROOT / "tests" / "findings.md").read_text(encoding="utf-8").partition("## Users")[2]
    for path, function in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", tables):
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert f"def {function}(" in text if function else text, f"tests/findings.md names {path}::{function}"
