"""The page of sentences is up to date, and finds each kind of sentence where a user meets it."""

import pytest

from docs.sentences import ERRORS, HELP, LOGS, OBJECTS, PAGE, PRINTED, Sentence, page, read

COMMAND = '@click.command()\ndef run():\n    """Serve models on\n    this host."""'


def test_the_page_is_what_the_sources_say():
    """docs/sentences.md is what `make sentences` would write now: if this fails, run it."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(
    ("module", "source", "place", "text"),
    [
        ("supervisor/a.py", 'Verdict("Failed", f"engine {name} has ended")', OBJECTS, "engine {name} has ended"),
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
