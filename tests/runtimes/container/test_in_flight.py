"""An engine's requests are what all of its metrics of them add up to."""

import math

import pytest

from llmkube.runtimes.container.in_flight import requests_in_flight

NAMES = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
IDLE = "# HELP x y\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (IDLE, 0),
        (IDLE.replace("processing 0", "processing 1"), 1),
        (IDLE.replace("deferred 0", "deferred 2.0"), 2),
        (IDLE.replace("processing 0", 'processing{model="a b} c"} 0'), 0),
        (IDLE + 'llamacpp:requests_processing{model="x"} 3 1700000000\n', 3),
        (IDLE.replace("processing 0", "processing"), None),
        ("llamacpp:requests_processing 0\n", None),
        ("llamacpp:requests_processing_total 5\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n", 0),
        ("", None),
    ],
)
def test_what_is_missing_is_not_zero(text, requests):
    """Every metric has to be there and a number, in any of its labels; else it is not known how many there are."""
    assert requests_in_flight(text, NAMES) == requests


def test_what_is_no_number_is_not_zero():
    """An engine that says NaN is not idle."""
    found = requests_in_flight(IDLE.replace("processing 0", "processing NaN"), NAMES)
    assert found is not None
    assert math.isnan(found)
