"""Comparison of data class names, and classes in a header."""

import pytest

from llmkube.router.config.data_classes import classes_in, header_values, normalized_class


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (" PII ", "pii"),
        ("Top\t Secret", "top secret"),
        ("ho\u0308chst", "h\u00f6chst"),
        ("\uff50\uff49\uff49", "pii"),
        ("", ""),
    ],
)
def test_a_class_has_one_name(written, name):
    """The name is the same in a spec and in a header, in any case and spacing."""
    assert normalized_class(written) == name


@pytest.mark.parametrize("line", ["pii", "top secret", "h\u00f6chst", "data-class_1", "a.b"])
def test_a_name_is_found_in_itself_and_in_a_list(line):
    """A header can express each name that a spec may have: in a list, in capitals, in UTF-8."""
    for written in (line, line.upper(), f"public, {line}", f"{line};x" if " " not in line else line):
        assert line in classes_in(written)
        assert line in classes_in(written.encode().decode("latin-1"))


@pytest.mark.parametrize("line", ["pii, phi", '"pii"', "a,b"])
def test_no_header_names_a_class_with_a_comma_or_quotes(line):
    """The config refuses such a name; as a header it names several classes."""
    assert line not in classes_in(line)
    assert classes_in(line)


def test_an_empty_text_names_no_class():
    """The default class applies."""
    assert classes_in("") == classes_in(" , ") == frozenset()


def test_other_lists_are_words_alone():
    """Regions and tags are not matched as part of a text: a false match could admit a backend."""
    assert header_values(' EU, "us" ,, a b') == {"eu", "us", "a b"}
