"""An independent, plain implementation of the policy's promises: it reads drawn data and uses no code under test."""

from typing import Any

DEFAULT_WAIT = 120.0


def fits(pattern: str, text: str) -> bool:
    """Match a pattern, one character at a time."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(fits(pattern[1:], text[start:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and fits(pattern[1:], text[1:])


def fits_one(patterns: tuple[str, ...], text: str) -> bool:
    return any(fits(pattern, text) for pattern in patterns)


def classes_of(router: dict[str, Any], request: dict[str, Any]) -> set[str]:
    named = set(request["classes"])
    return named or {each.strip() for each in router["default_class"].split(",") if each}


def forbidden(router: dict[str, Any], request: dict[str, Any], name: str) -> str:
    """Return the promise that sending a request to a backend would break, or ""."""
    backend = router["backends"][name]
    if classes_of(router, request) & router["sensitive"] and not backend["local"]:
        return "class"
    if request["regions"] and (backend["region"] == "" or backend["region"] not in request["regions"]):
        return "region"
    for tag in needed_by(router, request):
        if tag not in backend["tags"]:
            return "capability"
    if router["teams"] and not team_may(router, request, backend):
        return "team"
    return "missing" if backend["missing"] else ""


def needed_by(router: dict[str, Any], request: dict[str, Any]) -> set[str]:
    """Return the capabilities of the header, and of the body those that some backend of the router has."""
    needed = set(request["needs"])
    for part, tag in (("image", "vision"), ("audio", "audio"), ("tools", "tools")):
        if part in request["parts"] and any(tag in other["tags"] for other in router["backends"].values()):
            needed.add(tag)
    return needed


def team_may(router: dict[str, Any], request: dict[str, Any], backend: dict[str, Any]) -> bool:
    """Return whether the requested model and the backend are both in the team's list."""
    if request["team"] not in router["teams"]:
        return False
    patterns = router["teams"][request["team"]]
    if not fits_one(patterns, request["model"]):
        return False
    serves = backend["model"]
    return not serves or fits_one(patterns, serves) or fits_one(patterns, backend["model_id"])


def model_allowed(router: dict[str, Any], request: dict[str, Any]) -> bool:
    if not router["teams"]:
        return True
    return fits_one(router["teams"].get(request["team"], ()), request["model"])


def matches(router: dict[str, Any], request: dict[str, Any], rule: dict[str, Any]) -> bool:
    if rule["classes"] and not (rule["classes"] & classes_of(router, request)):
        return False
    if rule["models"] and not fits_one(rule["models"], request["model"]):
        return False
    if rule["headers"] and rule["headers"]["x-app"] != request["app"]:
        return False
    return not rule["complexity"] or rule["complexity"] == request["complexity"]


def usable(router: dict[str, Any], request: dict[str, Any], rule: dict[str, Any]) -> list[str]:
    found = []
    for name in rule["backends"]:
        slow = rule["slo"] is not None and name in request["measured"] and request["measured"][name] > rule["slo"]
        if not forbidden(router, request, name) and rule["tags"] <= router["backends"][name]["tags"] and not slow:
            found.append(name)
    return found


def arranged(router: dict[str, Any], request: dict[str, Any], rule: dict[str, Any]) -> tuple[list[str], list[str]]:
    names = usable(router, request, rule)
    if rule["strategy"] == "shadow":
        first = rule["backends"][0]
        return ([first] if first in names else []), [name for name in names if name != first]
    if rule["strategy"] == "least-loaded":
        return sorted(names, key=lambda name: (request["load"].get(name, 0), rule["backends"].index(name))), []
    if rule["strategy"] == "weighted":
        shares = [name for name in names for _ in range(router["backends"][name]["weight"])]
        if shares:
            drawn = shares[int(request["pick"] * len(shares))]
            return [drawn, *(name for name in names if name != drawn)], []
    return names, []


def sent(router: dict[str, Any], rule: dict[str, Any] | None, order: list[str], shadows: list[str]) -> dict[str, Any]:
    waits = {}
    for name in (*order, *shadows):
        wait = router["backends"][name]["wait"]
        if rule is not None and rule["wait"] is not None:
            wait = rule["wait"]
        waits[name] = DEFAULT_WAIT if wait is None else wait
    return {"rule": rule["name"] if rule else "", "order": order, "shadows": shadows, "reason": "", "waits": waits}


def refused(reason: str, rule: str = "") -> dict[str, Any]:
    return {"rule": rule, "order": [], "shadows": [], "reason": reason, "waits": {}}


def expected(router: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return the expected result of a request: rule, order, shadows, reason, waits."""
    if not model_allowed(router, request):
        return refused("ModelNotAllowed")
    for rule in router["rules"]:
        if matches(router, request, rule):
            order, shadows = arranged(router, request, rule)
            if order:
                return sent(router, rule, order, shadows)
            if rule["fail_closed"]:
                return refused("FailClosed", rule["name"])
    return by_default(router, request)


def by_default(router: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    asked = []
    if router["by_model"] and request["model"]:
        asked = [name for name, each in router["backends"].items() if each["model_id"] == request["model"]][:1]
    if router["default"]:
        asked.append(router["default"])
    for name in asked:
        if not forbidden(router, request, name):
            return sent(router, None, [name], [])
    return refused("NotPermitted" if asked else "NoRoute")
