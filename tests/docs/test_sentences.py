"""The page of sentences is up to date, and finds each kind of sentence where a user meets it."""

import re

import attrs
import pytest

from docs.sentences import (
    ERRORS,
    HELP,
    LOGS,
    MORE,
    OBJECTS,
    PAGE,
    PRINTED,
    RULES,
    Sentence,
    collect,
    folded,
    minutes,
    pages,
    read,
)

COMMAND = '@click.command()\ndef run():\n    """Serve models on\n    this host."""'


def test_the_page_is_what_the_sources_say():
    """docs/sentences.md and its sister are what `make sentences` would write now: if this fails, run it."""
    assert {path: path.read_text(encoding="utf-8") for path in (PAGE, MORE)} == pages()


def test_what_objects_say_is_read_in_ten_minutes():
    """docs/sentences.md is short enough that a reviewer reads it as a whole."""
    assert minutes([each for each in folded(collect()) if each.place == OBJECTS]) <= 10


def test_what_differs_in_the_names_of_values_alone_stands_once():
    here, there = (Sentence(ERRORS, "a.py", f"{{{name}}} is a folder, and no file") for name in ("path", "given"))
    assert folded([here, there, attrs.evolve(there, place=LOGS)]) == [here, attrs.evolve(there, place=LOGS)]


def test_a_sentence_says_who_acts():
    """No sentence that a user meets has an actor without a name: nobody, whoever and the like."""
    actors = re.compile(r"\b(nobody|whoever|somebody|someone|anybody|anyone|everybody|everyone)\b", re.IGNORECASE)
    assert [each for each in collect() if actors.search(each.text)] == []


@pytest.mark.parametrize(
    ("module", "source", "place", "text"),
    [
        ("supervisor/a.py", 'Verdict("Failed", f"engine {name} has ended")', OBJECTS, "engine {name} has ended"),
        ("supervisor/host_policies.py", '_said("a host writes its own Events")', RULES, "a host writes its own Events"),
        ("supervisor/a.py", 'raise UserError(f"{self.path} is a folder here")', ERRORS, "{path} is a folder here"),
        ("supervisor/a.py", 'log.info("engine has started here", pid=1)', LOGS, "engine has started here"),
        ("cli/a.py", 'click.echo(f"{len(names)} models were removed")', PRINTED, "{names} models were removed"),
        ("cli/a.py", "x = f\"{shown} is {'on this host' if a else b}\"", PRINTED, "{shown} is {on this host|b}"),
        ("cli/a.py", 'click.option("--all", help="Look at all namespaces.")', HELP, "Look at all namespaces."),
        ("cli/a.py", COMMAND, HELP, "Serve models on this host."),
    ],
)
def test_a_sentence_is_found_where_it_is_met(module, source, place, text):
    assert read(module, source) == [Sentence(place, module, text)]


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring of a module."""',
        'raise ValueError("a bug in the caller")',
        'assert found, "the caller has looked"',
        're.compile("some words in a pattern")',
        'x = ["a", "two words"]',
    ],
)
def test_what_no_user_meets_is_left_out(source):
    assert read("supervisor/a.py", source) == []
