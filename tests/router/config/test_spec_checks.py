"""A router that no API server has checked is held to what its definition says of each field."""

import pytest

from router.written_routers import BACKENDS, errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("backends: []\n", "spec.backends: it has 0 entries; give at least 1"),
        (BACKENDS.replace("name: mac", "name: Mac!"), 'spec.backends[Mac!].name: "Mac!" does not have the form ^'),
        (
            BACKENDS.replace("openai,", "openia,"),
            '.external.provider: "openia" is unknown; write one of anthropic, openai',
        ),
        (BACKENDS.replace("- name: mac", "- name: mac\n  tier: here"), 'spec.backends[mac].tier: "here" is unknown'),
        (BACKENDS.replace("- name: mac", "- name: mac\n  weight: -1"), "spec.backends[mac].weight: -1 is too small"),
        (BACKENDS.replace("- name: mac", "- name: mac\n  displayName: ''"), 'displayName: "" is too short'),
        (BACKENDS + "endpoint: { port: 70000 }\n", "spec.endpoint.port: 70000 is too large; write at most 65535"),
        (BACKENDS + f"defaultRoute: {'x' * 64}\n", "is too long; write at most 63 characters"),
        (BACKENDS + "proxy: { replicas: 11 }\n", "spec.proxy.replicas: 11 is too large; write at most 10"),
        (
            BACKENDS + "polcy: { }\n",
            "spec.polcy: {} stands under a field that nothing reads; known are backends, rules",
        ),
    ],
)
def test_a_field_is_held_to_its_definition(text, said):
    """Path, value, and the way out."""
    assert said in errors(text)


def test_a_long_value_is_cut():
    """A sentence stays one."""
    said = next(line for line in errors(BACKENDS + f"surprise: {'x' * 5000}\n").splitlines() if "surprise" in line)
    assert len(said) < 400
