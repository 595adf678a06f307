"""What is allowed and may not be meant is told, and nothing else is."""

import pytest

from router.written_routers import BACKENDS, compiled

PRIVATE = "- { name: private, match: { dataClassification: [pii] }, failClosed: true, route: { backends: [mac] } }\n"
HEALTH = "- { name: health, match: { dataClassification: [phi] }, failClosed: true, route: { backends: [mac] } }\n"


def warned(text):
    found = compiled(BACKENDS + text)
    assert found.errors == ()
    return "\n".join(found.warnings)


def rules(*lines):
    return "rules:\n" + "".join(lines)


def rule(name, match="{}", closed="false", backends="mac"):
    return f"- {{ name: {name}, match: {match}, failClosed: {closed}, route: {{ backends: [{backends}] }} }}\n"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{}", "{}"),
        ("{}", "{ taskComplexity: simple }"),
        ("{ models: ['gpt-*'] }", "{ models: ['gpt-*', gpt-5] }"),
        ("{ models: ['*'] }", "{ models: ['phi?'] }"),
        ("{ headers: { a: b } }", "{ headers: { a: b, c: d } }"),
        ("{ dataClassification: [x, y] }", "{ dataClassification: [x] }"),
        ("{ requiredCapabilities: [chat] }", "{ requiredCapabilities: [chat, vision] }"),
        ("{ latencySLOMs: 200 }", "{ latencySLOMs: 100 }"),
    ],
)
def test_a_rule_that_another_covers_is_named(earlier, later):
    """Where the earlier fails closed it is never reached, else only where nothing of the earlier may be used."""
    closed = rules(rule("first", earlier, "true"), rule("second", later))
    assert "spec.rules[1]: second is reached never: first above it matches all" in warned(closed)
    passed = rules(rule("first", earlier), rule("second", later))
    assert "spec.rules[1]: second is reached only where no backend of first may be used" in warned(passed)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{ taskComplexity: simple }", "{}"),
        ("{ models: ['gpt-*'] }", "{ models: ['gpt-*', 'phi'] }"),
        ("{ models: ['gpt-*'] }", "{ models: ['*'] }"),
        ("{ headers: { a: b } }", "{ headers: { a: c } }"),
        ("{ dataClassification: [x] }", "{ dataClassification: [x, y] }"),
        ("{ requiredCapabilities: [chat] }", "{}"),
        ("{ latencySLOMs: 100 }", "{ latencySLOMs: 200 }"),
    ],
)
def test_a_rule_that_can_be_reached_is_not(earlier, later):
    """What the earlier leaves comes to it."""
    assert "is reached" not in warned(rules(rule("first", earlier, "true"), rule("second", later)))


def test_a_rule_that_refuses_what_a_later_one_would_serve_is_named():
    """It fails closed over the cloud alone, above the rule for pii."""
    hasty = rule("hasty", "{ taskComplexity: complex }", "true", "cloud")
    assert "spec.rules[0]: hasty fails closed and has no local backend" in warned(rules(hasty, PRIVATE))
    assert "hasty" not in warned(rules(PRIVATE, hasty))
    mixed = rule("hasty", "{ taskComplexity: complex }", "true", "cloud, mac")
    assert "hasty" not in warned(rules(mixed, PRIVATE))


def test_a_default_route_that_refuses_sensitive_classes_is_named():
    """With the classes that no rule catches."""
    assert "defaultRoute: cloud is not local: a request of class phi, pii" in warned("defaultRoute: cloud\n")
    assert "request of class phi that" in warned(rules(PRIVATE) + "defaultRoute: cloud\n")
    assert "defaultRoute" not in warned(rules(PRIVATE, HEALTH) + "defaultRoute: cloud\n")
    assert "defaultRoute" not in warned("defaultRoute: mac\n")


def test_two_backends_of_one_public_name_are_named():
    """Clients see one model; under BackendNameMatch it is an error."""
    text = BACKENDS.replace("name: cloud\n", "name: cloud\n  displayName: mac\n")
    assert any("spec.backends[cloud].displayName: 'mac' names mac, too" in each for each in compiled(text).warnings)
