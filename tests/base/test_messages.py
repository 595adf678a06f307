"""A message has no credentials, fits its field, and keeps the cause."""

import pytest

from llmkube.base.messages import redact, shorten


@pytest.mark.parametrize(
    ("message", "gone"),
    [
        ("GET https://ann:hunter2@host/x: 403", "hunter2"),
        ("GET https://cdn/x.gguf?X-Amz-Signature=abc123: 403", "abc123"),
        ("header Authorization: Bearer abcdefgh.ijkl", "abcdefgh"),
        ("token hf_AbCdEfGhIjKl was refused", "hf_AbCdEfGhIjKl"),
        ("api_key=topsecret", "topsecret"),
        ("PASSWORD=topsecret&x", "topsecret"),
    ],
)
def test_credentials_are_redacted(message, gone):
    """Text that looks like a credential does not reach the API server."""
    assert gone not in redact(message)
    assert "[redacted]" in redact(message)


@pytest.mark.parametrize("message", ["exit code 1", "why? a = b", "933.8 KiB of 4 GiB", "", "https://host/path"])
def test_plain_words_stay(message):
    """A message without credentials is not changed."""
    assert redact(message) == message


def test_a_long_message_keeps_its_first_line_and_its_last_ones():
    """An engine's last lines are in the Event, after any amount of output; whole lines are left out."""
    lines = [f"{number:02} " + "é" * 60 for number in range(20)]
    cut = shorten("\n".join(("it ended: exit code 1", *lines)), 1024)
    assert len(cut.encode()) <= 1024
    head, gap, *rest = cut.split("\n")
    assert (head, gap) == ("it ended: exit code 1", "…")
    assert rest == lines[-len(rest) :]
    assert len(rest) == 8


@pytest.mark.parametrize("message", ["a" * 1024 + "\nb", "a" * 1020 + "\nbcdefgh", "a\n" + "b" * 2000])
def test_a_line_that_leaves_no_room_is_cut(message):
    """If no whole line fits after the first one, the message is cut at its end."""
    cut = shorten(message, 1024)
    assert cut.endswith("…")
    assert message.startswith(cut[:-1])
    assert 1000 < len(cut.encode()) <= 1024


def test_long_messages_are_cut_between_characters():
    """A message of any alphabet fits into 1 KiB and stays text."""
    cut = shorten("é" * 2000, 1024)
    assert len(cut.encode()) <= 1024
    assert cut.endswith("é…")
