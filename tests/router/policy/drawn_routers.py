"""Random routers and requests: plain data for the oracle, and the code's objects for the same data.

The plain data has the client's intent; its form in headers (case, separators, repetition) is drawn separately.
Nothing is validated: a router that the checks would refuse may leak no more than any other.
"""

import random
from typing import Any, Final

from llmkube.router.config.routing_config import Auth, Backend, Classes, Match, RoutingConfig, Rule

CLASSES: Final = ("pii", "phi", "public", "internal", "secret")
REGIONS: Final = ("eu", "us", "ch")
TAGS: Final = ("chat", "vision", "tools", "long", "audio")
MODELS: Final = ("gpt-5", "openai/gpt-5", "phi-4", "claude-opus", "meta/llama/3", "alias", "phi-", "phi-4-mini", "")
PATTERNS: Final = ("*", "gpt-*", "openai/*", "phi-?", "*opus", "meta/*/3", "*gpt*", "alias", "phi-4", "g?t-5")
TEAMS: Final = ("red", "blue", "green", "")
STRATEGIES: Final = ("primary-fallback", "weighted", "shadow", "least-loaded")
COMPLEXITIES: Final = ("simple", "moderate", "complex")
_SPACE: Final = "\u00a0".encode().decode("latin-1")
"""A no-break space in UTF-8, read as Latin-1."""
HEADER: Final = "x-llmkube-classification"


def draw_router(dice: random.Random) -> dict[str, Any]:
    """Draw a router: names, locations, rules, lists of teams."""
    names = [f"b{number}" for number in range(dice.randint(1, 6))]
    backends = {
        name: {
            "local": dice.random() < 0.5,
            "region": dice.choice((*REGIONS, "")),
            "tags": frozenset(dice.sample(TAGS, dice.randint(0, 4))),
            "model": dice.choice(MODELS),
            "model_id": dice.choice((name, dice.choice(MODELS[:-1]))),
            "weight": dice.randint(0, 3),
            "wait": dice.choice((None, 5.0, 60.0)),
            "missing": dice.random() < 0.1,
        }
        for name in names
    }
    return {
        "backends": backends,
        "rules": [_draw_rule(dice, names, number) for number in range(dice.randint(0, 5))],
        "default": dice.choice((*names, "")),
        "by_model": dice.random() < 0.4,
        "default_class": dice.choice((*CLASSES, "", "", "", "public, pii", "internal,secret")),
        "sensitive": frozenset(dice.sample(CLASSES, dice.randint(1, 3))),
        "teams": {
            team: tuple(dice.sample(PATTERNS, dice.randint(0, 3)))
            for team in dice.sample(TEAMS[:-1], dice.randint(1, 3))
        }
        if dice.random() < 0.3
        else {},
    }


def _draw_rule(dice: random.Random, names: list[str], number: int) -> dict[str, Any]:
    def some(values: tuple[str, ...], chance: float, most: int = 2) -> tuple[str, ...]:
        return tuple(dice.sample(values, dice.randint(1, most))) if dice.random() < chance else ()

    return {
        "name": f"r{number}",
        "classes": frozenset(some(CLASSES, 0.4)),
        "models": some(PATTERNS, 0.25),
        "headers": {"x-app": dice.choice(("a", "b"))} if dice.random() < 0.15 else {},
        "tags": frozenset(some(TAGS, 0.2)),
        "complexity": dice.choice(COMPLEXITIES) if dice.random() < 0.25 else "",
        "slo": dice.choice((0.5, 2.0)) if dice.random() < 0.2 else None,
        "backends": tuple(dice.sample(names, dice.randint(1, len(names)))),
        "strategy": dice.choice(STRATEGIES),
        "fail_closed": dice.random() < 0.4,
        "wait": dice.choice((None, None, 7.0)),
    }


def draw_request(dice: random.Random, router: dict[str, Any]) -> dict[str, Any]:
    """Draw a client's intent, the request for it, and the router's measurements."""
    classes = frozenset(dice.sample(CLASSES, dice.choice((0, 0, 1, 1, 1, 2, 3))))
    regions = frozenset(dice.sample(REGIONS, dice.choice((0, 0, 0, 1, 2))))
    needs = frozenset(dice.sample((*TAGS, "unheard"), dice.choice((0, 0, 0, 1, 2))))
    parts = frozenset(dice.sample(("image", "audio", "tools"), dice.choice((0, 0, 0, 1, 2))))
    model, complexity = dice.choice(MODELS), dice.choice((*COMPLEXITIES, ""))
    app = dice.choice(("a", "b", "c", ""))
    head = {
        HEADER: _written(dice, classes, (", ", ",", " , ", ";", " ", "; ", "|", "+", "/", _SPACE)),
        "x-llmkube-region": _written(dice, regions, (", ", ",", " ,")),
        "x-llmkube-capabilities": _written(dice, needs, (", ", ",")),
        "x-llmkube-task-complexity": _in_some_case(dice, complexity),
        "x-app": app,
        "authorization": "Bearer of-a-client",
    }
    return {
        "classes": classes,
        "regions": regions,
        "needs": needs,
        "parts": parts,
        "model": model,
        "complexity": complexity,
        "app": app,
        "team": dice.choice(TEAMS),
        "head": {name: value for name, value in head.items() if value},
        "body": _body(dice, model, parts),
        "measured": {name: dice.choice((0.1, 1.0, 3.0)) for name in router["backends"] if dice.random() < 0.5},
        "load": {name: dice.randint(0, 3) for name in router["backends"] if dice.random() < 0.7},
        "pick": dice.randrange(2048) / 2048,
    }


def _written(dice: random.Random, values: frozenset[str], separators: tuple[str, ...]) -> str:
    words = [_in_some_case(dice, each) for each in sorted(values)]
    if words and dice.random() < 0.15:
        words.append(words[0])
    quoted = [f'"{word}"' if dice.random() < 0.05 else word for word in words]
    edge = " " if dice.random() < 0.1 else ""
    return edge + dice.choice(separators).join(quoted) + edge


def _in_some_case(dice: random.Random, text: str) -> str:
    return dice.choice((text, text, text.upper(), text.title()))


def _body(dice: random.Random, model: str, parts: frozenset[str]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": "hello"}]
    if "image" in parts:
        content.append({"type": dice.choice(("image_url", "input_image", "image"))})
    if "audio" in parts:
        content.append({"type": "input_audio"})
    if dice.random() < 0.3:  # the content of a tool's answer
        content = [{"type": "tool_result", "content": content}]
    turns = [{"role": "user", "content": "hi"}, {"role": "user", "content": content}]
    body: dict[str, Any] = {dice.choice(("messages", "input")): turns}
    if "tools" in parts:
        body["tools"] = [{"type": "function"}]
    return {**body, "model": model} if model else body


def config_of(router: dict[str, Any]) -> RoutingConfig:
    """Return the config of a router."""
    return RoutingConfig(
        name="drawn/router",
        backends={
            name: Backend(
                name=name,
                model_id=each["model_id"],
                base_url=f"http://{name}.svc:8080/v1",
                local=each["local"],
                model=each["model"],
                region=each["region"],
                capabilities=each["tags"],
                weight=each["weight"],
                first_byte_seconds=each["wait"],
                missing="it is not there" if each["missing"] else "",
            )
            for name, each in router["backends"].items()
        },
        rules=tuple(
            Rule(
                name=each["name"],
                match=Match(
                    classes=each["classes"],
                    models=each["models"],
                    headers=each["headers"],
                    capabilities=each["tags"],
                    complexity=each["complexity"],
                    latency_seconds=each["slo"],
                ),
                backends=each["backends"],
                strategy=each["strategy"],
                fail_closed=each["fail_closed"],
                first_byte_seconds=each["wait"],
            )
            for each in router["rules"]
        ),
        default_backend=router["default"],
        by_model=router["by_model"],
        classes=Classes(header=HEADER, default=router["default_class"], sensitive=router["sensitive"]),
        auth=Auth(keys_folder="/keys", models_of_team=router["teams"]),
    )
