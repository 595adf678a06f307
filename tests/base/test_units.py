from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.base.errors import UserError
from llmkube.base.units import format_age, format_bytes, format_duration, parse_bytes, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("24Gi", 24 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("500m", Fraction(1, 2)),
        ("100n", Fraction(1, 10**7)),
        ("7u", Fraction(7, 10**6)),
        ("2k", 2000),
        ("3M", 3 * 10**6),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("12e-3", Fraction(12, 1000)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+4", 4),
        ("-1Ki", -1024),
        (8, 8),
        (0.1, Fraction(1, 10)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_a_quantity_is_exact(text, value):
    """Kubernetes' own notations give exactly their value, with no rounding through floats."""
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "Gi", "1 Gi", "1gi", "1K", "1e", "1e3Gi", "--1", "1.2.3", "٣", "NaN", "inf", "1e9999", "9" * 5000, True],
)
def test_an_invalid_quantity_is_refused(text):
    """Text outside the grammar is a user error that names the field, and a hostile one takes no time."""
    with pytest.raises(UserError, match=r"spec\.memory: .* is not a quantity") as caught:
        parse_quantity(text, field="spec.memory")
    assert len(str(caught.value)) < 200


def test_bytes_are_rounded_up():
    """A fraction of a byte is a byte, as in the API server."""
    assert parse_bytes("1500m") == 2


def test_negative_bytes_are_refused():
    """Memory below zero is an error and not a huge number later."""
    with pytest.raises(UserError, match="negative"):
        parse_bytes("-1")


@given(st.integers(min_value=0, max_value=2**70), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_binary_suffixes_multiply(count, suffix):
    """A whole number with a binary suffix is that many powers of 1024."""
    assert parse_bytes(f"{count}{suffix}") == count * 1024 ** (["Ki", "Mi", "Gi", "Ti"].index(suffix) + 1)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (956_211, "933.8 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (24 * 2**30, "24.0 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes_read_well(count, text):
    """Sizes use the largest binary unit that keeps the number below 1024."""
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), (30, 30)],
)
def test_durations_are_read(text, seconds):
    """A bare number is seconds; units add up."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-5", "5 m", "m5", "1h-3m", "five", "5x", "1" * 100])
def test_an_invalid_duration_is_refused(text):
    """A duration that cannot be read is never taken for zero."""
    with pytest.raises(UserError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 ms"),
        (0.0031, "3 ms"),
        (0.42, "0.42 s"),
        (9.999, "10.0 s"),
        (12.34, "12.3 s"),
        (59.97, "1m00s"),
        (125, "2m05s"),
        (3599.8, "1h00m"),
        (3725, "1h02m"),
    ],
)
def test_measured_times_read_well(seconds, text):
    """No unit ever shows a value that belongs to the next one."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (25 * 60, "25m"),
        (3 * 3600, "3h"),
        (5 * 3600 + 720, "5h12m"),
        (20 * 3600, "20h"),
        (76 * 3600, "3d4h"),
        (40 * 86400, "40d"),
        (760 * 86400, "2y30d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_look_like_kubectl(seconds, text):
    """An age is written with the units and thresholds of kubectl's own tables."""
    assert format_age(seconds) == text
