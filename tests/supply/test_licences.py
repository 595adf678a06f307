"""Every package that is installed from the locks has a licence of this list, as its own metadata states it."""

import re
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.licenses import canonicalize_license_expression
from packaging.requirements import Requirement

from supply.lock import FOLDER, entries

PERMISSIVE = frozenset(
    (
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC"),
        *("MIT", "MIT-0", "PSF-2.0", "Python-2.0", "Zlib"),
    )
)
"""Asks for no more than a notice."""

FILE_COPYLEFT = frozenset({"MPL-2.0"})
"""Asks for the sources of its own files when those are changed; we change none, and ship none in the wheel."""

ALLOWED = PERMISSIVE | FILE_COPYLEFT

WORDS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd 2-clause license": "BSD-2-Clause",
    "expat license": "MIT",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""Licence names of older metadata, in lower case."""

READ = {
    # the classifier says "BSD License" and no more; its LICENSE has the three clauses
    "google-re2": ("BSD-3-Clause", "neither the name of google inc. nor the names of its"),
    # no licence in the metadata, but a file
    "cel-python": ("Apache-2.0", "apache license version 2.0, january 2004"),
}
"""Packages whose metadata names none exactly: what their licence file is, and words of it."""


def declared(metadata) -> str:
    """Return the licence that metadata declares, as an SPDX expression; empty if it names none exactly."""
    for field in ("License-Expression", "License"):
        text = (metadata.get(field) or "").strip()
        if not text or "\n" in text:
            continue
        try:
            return canonicalize_license_expression(WORDS.get(text.lower(), text))
        except ValueError:
            continue  # prose
    named = [each.rpartition(" :: ")[2].lower() for each in metadata.get_all("Classifier", []) if "License ::" in each]
    if named and all(each in WORDS for each in named):
        return " AND ".join(sorted({WORDS[each] for each in named}))  # several, none said to be a choice
    return ""


def accepted(expression: str) -> bool:
    """Say whether what an expression asks for is allowed: one side of an OR, both of an AND."""
    words = re.findall(r"[()]|[\w.+-]+", expression)
    if not words or "WITH" in words:
        return False
    terms = [
        word.lower() if word in ("AND", "OR") else word if word in "()" else str(word in ALLOWED) for word in words
    ]
    return bool(eval(" ".join(terms), {"__builtins__": {}}))


def installed():
    for each in entries((FOLDER / "dev.txt").read_text()):
        requirement = Requirement(each.splitlines()[0].removesuffix("\\"))
        if requirement.marker is None or requirement.marker.evaluate():
            yield requirement.name


def test_the_licence_is_on_the_list():
    for name in installed():
        try:
            found = distribution(name)
        except PackageNotFoundError:
            pytest.fail(f"{name} is pinned and not installed; run: rm -f .venv/.installed && make .venv/.installed")
        expression = declared(found.metadata)
        if name in READ:
            expression, words = READ[name]
            texts = [each.read_text() for each in found.files if each.name == "LICENSE"]
            assert words in " ".join(" ".join(texts).lower().split())
        assert accepted(expression), f"{name}: {expression or 'no licence in its metadata'}"


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("MPL-2.0 AND (Apache-2.0 OR GPL-3.0-only)", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("LGPL-2.1-or-later OR AGPL-3.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("LicenseRef-Proprietary", False),
        ("", False),
    ],
)
def test_an_expression_is_allowed_if_a_choice_of_it_is(expression, allowed):
    """One licence that is not on the list refuses an AND; an unknown one is none."""
    assert accepted(expression) is allowed
