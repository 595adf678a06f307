"""Only one function makes a Permit, for class ∩ tenant ∩ region ∩ capability ∩ models."""

import ast
import copy
import pickle
from pathlib import Path

import attrs
import pytest

import llmkube
from llmkube.router.config.routing_config import Auth, Backend, RoutingConfig
from llmkube.router.policy import permits
from llmkube.router.policy.permits import Permit, permits_for
from llmkube.router.policy.request_facts import Principal, RequestFacts

SOURCES = Path(llmkube.__file__).parent
HOME = "router/policy/permits.py"
COPIES_HEADS = "base/http/heads.py"
"""It copies a head by `object.__new__`; the layering contract keeps it independent of routers."""


def backend(name, **fields):
    return Backend(name=name, model_id=name, base_url=f"http://{name}.svc/v1", **{"local": True, **fields})


def config(*backends, **fields):
    return RoutingConfig(name="ml/front", backends={each.name: each for each in backends}, **fields)


def a_permit():
    return permits_for(config(backend("here")), RequestFacts(model="")).allowed["here"]


# -- one maker --------------------------------------------------------------------------------------------------------


def second_makers(tree, *, home):
    """Return the lines of a module that make a Permit or could: calls of it, its maker, `object.__new__`.

    Otherwise the name `Permit` is in imports, in annotations, and where a transport checks its argument.
    """
    annotations = {id(each) for node in ast.walk(tree) for root in annotated(node) for each in ast.walk(root)}
    makers = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "permits_for"]
    inside = {id(each) for maker in makers for each in ast.walk(maker)} if home else set()
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name == "Permit" and id(node) not in annotations and id(node) not in inside:
            yield f"line {node.lineno}: Permit"
        elif isinstance(node, ast.alias) and node.name.split(".")[-1] == "Permit" and node.asname:
            yield f"line {node.lineno}: Permit under another name"
        elif name == "_MAKER" and not home:
            yield f"line {node.lineno}: _MAKER"
        elif isinstance(node, ast.alias) and node.name == "_MAKER":
            yield f"line {node.lineno}: _MAKER is imported"
        elif isinstance(node, ast.Constant) and node.value in {"Permit", "_MAKER"}:
            yield f"line {node.lineno}: {node.value} by its name"
        elif name == "__new__" and isinstance(getattr(node, "value", None), ast.Name) and node.value.id == "object":
            yield f"line {node.lineno}: object.__new__"


def annotated(node):
    """Return whether a node uses a class as a type only: annotations, parts of a type, type checks."""
    if isinstance(node, ast.AnnAssign | ast.arg):
        return [each for each in (node.annotation,) if each is not None]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [each for each in (node.returns,) if each is not None]
    if isinstance(node, ast.Subscript):  # list[Permit]
        return [node.slice]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):  # type(leave) is Permit
        return node.comparators
    return []


@pytest.mark.ci
def test_nothing_else_in_the_sources_makes_a_permit():
    """No module but policy/permits calls it, uses its maker, or makes objects without the class's constructor."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        module = path.relative_to(SOURCES).as_posix()
        found[module] = list(second_makers(ast.parse(path.read_text(encoding="utf-8")), home=module == HOME))
    assert [place.partition(": ")[2] for place in found.pop(COPIES_HEADS)] == ["object.__new__"]
    assert {module: places for module, places in found.items() if places} == {}
    assert HOME in found


@pytest.mark.parametrize(
    "source",
    [
        "Permit(backend, maker)",
        "permits.Permit(backend, object())",
        "make = Permit",
        "from llmkube.router.policy.permits import Permit as Leave",
        "from llmkube.router.policy.permits import _MAKER",
        "permits._MAKER",
        "vars(permits)['_MAKER']",
        "getattr(permits, 'Permit')",
        "object.__new__(cls)",
        "class Wide(Permit): pass",
        "make = type(permit) is not None and Permit",
        "list[Permit](Permit(1, 2))",
        "type(permit)(backend, permits._MAKER)",
    ],
)
def test_a_second_maker_would_be_seen(source):
    """The source check finds each known bypass."""
    assert list(second_makers(ast.parse(source), home=False))


def test_the_name_in_an_annotation_makes_nothing():
    """Functions that take, hold or return a Permit may annotate it."""
    source = """
from llmkube.router.policy.permits import Permit
def dial(leave: Permit) -> tuple[Permit, ...]:
    waiting: list[Permit] = []
    if type(leave) is not Permit:
        raise TypeError
"""
    assert not list(second_makers(ast.parse(source), home=False))


def test_a_permit_is_not_made_without_its_maker():
    """A call with another argument and a subclass are refused."""
    with pytest.raises(TypeError, match="only permits_for creates a Permit"):
        Permit(backend("away"), object())
    with pytest.raises(TypeError, match="only permits_for creates a Permit"):
        type("Wide", (Permit,), {})


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_permit_is_not_copied(way):
    """A copy would be a second permit, and an unpickled one could come from anywhere."""
    with pytest.raises(TypeError):
        way(a_permit())


def test_a_permit_does_not_change():
    """The connection uses the backend that was evaluated."""
    permit = a_permit()
    for change in (lambda: setattr(permit, "backend", backend("away")), lambda: delattr(permit, "backend")):
        with pytest.raises(AttributeError, match="does not change"):
            change()
    assert permit.backend.name == "here"


def test_one_that_was_made_past_its_class_names_no_backend():
    """`object.__new__` returns an object without a backend: a transport has nothing to connect to."""
    with pytest.raises(AttributeError):
        _ = object.__new__(Permit).backend


# -- what is open -----------------------------------------------------------------------------------------------------

EVERYWHERE = config(
    backend("here", region="eu", capabilities=frozenset({"vision"})),
    backend("away", local=False, region="us", model="gpt-5"),
    backend("nowhere", local=False),
)


@pytest.mark.parametrize(
    ("facts", "open_to_it"),
    [
        ({}, {"here", "away", "nowhere"}),
        ({"classes": frozenset({"pii"})}, {"here"}),
        ({"classes": frozenset({"public", "phi"})}, {"here"}),
        ({"classes": frozenset({"public"})}, {"here", "away", "nowhere"}),
        ({"regions": frozenset({"us"})}, {"away"}),
        ({"regions": frozenset({"us", "eu"})}, {"here", "away"}),
        ({"regions": frozenset({"mars"})}, set()),
        ({"capabilities": frozenset({"vision"})}, {"here"}),
        ({"capabilities": frozenset({"unheard"})}, set()),
        ({"classes": frozenset({"pii"}), "regions": frozenset({"us"})}, set()),
    ],
)
def test_what_a_request_may_reach(facts, open_to_it):
    """Each restriction closes backends, and all apply together; each closed backend has a reason."""
    found = permits_for(EVERYWHERE, RequestFacts(model="x", **facts))
    assert set(found.allowed) == open_to_it
    assert set(found.refused) == set(EVERYWHERE.backends) - open_to_it
    assert all(found.refused.values())


LISTED = Auth(keys_folder="/keys", models_of_team={"red": ("phi-*", "smart"), "blue": ("*",), "green": ()})


@pytest.mark.parametrize(
    ("team", "model", "open_to_it"),
    [
        ("red", "phi-4", {"here", "alias"}),
        ("red", "smart", {"here", "alias"}),
        ("red", "gpt-5", set()),
        ("blue", "gpt-5", {"here", "away", "alias"}),
        ("green", "phi-4", set()),
        ("", "phi-4", set()),
        ("stranger", "phi-4", set()),
        ("red", "", set()),
    ],
)
def test_a_team_reaches_what_its_list_has(team, model, open_to_it):
    """The list applies to the requested and the answering model; a team without a list reaches none."""
    smart = attrs.evolve(backend("alias", local=False, model="claude-opus"), model_id="smart")
    listed = config(backend("here"), backend("away", local=False, model="gpt-5"), smart, auth=LISTED)
    found = permits_for(listed, RequestFacts(model=model, principal=Principal(team=team)))
    assert set(found.allowed) == open_to_it


def test_a_team_that_may_not_use_a_model_is_refused():
    """It differs from "no backend is permitted": the client may use another model."""
    limited = config(backend("here"), auth=LISTED)
    found = permits_for(limited, RequestFacts(model="gpt-5", principal=Principal(team="red")))
    assert not found.model_allowed
    assert found.refused == {"here": "team red may not use the model gpt-5"}


def test_what_cannot_be_used_closes_itself_alone():
    """A backend without an address, or a missing one, is closed with the reason; the others stay open."""
    found = permits_for(
        config(backend("here"), backend("gone", missing="there is no InferenceService gone")), RequestFacts(model="")
    )
    assert set(found.allowed) == {"here"}
    assert found.refused == {"gone": "there is no InferenceService gone"}
    nameless = Backend(name="here", model_id="here", base_url="", local=True)
    assert not permits_for(config(nameless), RequestFacts(model="")).allowed


def test_the_module_offers_no_other_maker():
    """Its public names are the class, the set and the function."""
    public = {name for name, each in vars(permits).items() if getattr(each, "__module__", "") == permits.__name__}
    assert {name for name in public if not name.startswith("_")} == {"Permit", "Permits", "permits_for"}
