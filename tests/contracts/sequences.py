"""Random operations over two names of a few kinds, as values: what two servers disagree on shrinks to a few lines."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from contracts.lab import config_map
from contracts.nouns import GADGETS, MAPS, SERVICES, SLICES, WIDGETS, gadget, service, slice_of, widget
from contracts.session import APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC, Operation

NAMES = st.sampled_from(["a", "b"])
MANAGERS = st.sampled_from(["one", "two"])
TEXTS = st.sampled_from(["", "x", "y", "red", "blue"])
NUMBERS = st.sampled_from([-1, 0, 1, 3, 11])
LABELS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", ""]), max_size=2)
FINALIZERS = st.lists(st.sampled_from(["x.dev/a", "x.dev/b"]), max_size=2, unique=True)


def _some(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


PARTS = st.lists(_some({"name": st.sampled_from(["p", "q"]), "weight": NUMBERS | st.just("x")}), max_size=2)
WIDGET_SPECS = _some(
    {
        "size": NUMBERS | st.none(),
        "colour": TEXTS,
        "replicas": NUMBERS,
        "frozen": TEXTS,
        "parts": PARTS,
        "unknown": NUMBERS,
    }
)
GADGET_SPECS = _some(
    {
        "count": NUMBERS,
        "nested": st.none() | _some({"deep": st.none() | _some({"x": NUMBERS, "y": TEXTS})}),
        "tags": st.lists(TEXTS, max_size=3),
        "row": st.lists(TEXTS, max_size=2),
        "map": st.dictionaries(TEXTS, NUMBERS | st.none(), max_size=2),
        "items": st.lists(
            _some({"key": st.sampled_from(["k", "l"]), "zone": st.sampled_from(["near", "far"]), "value": NUMBERS}),
            max_size=2,
        ),
        "anything": st.dictionaries(TEXTS, NUMBERS | st.lists(TEXTS, max_size=2) | st.none(), max_size=2),
        "range": _some({"low": NUMBERS, "high": NUMBERS}),
        "either": NUMBERS | TEXTS | st.none(),
        "mode": st.sampled_from(["a", "b"]),
    }
)
DATA = st.dictionaries(st.sampled_from(["k", "l"]), TEXTS, max_size=2)
PORTS = st.lists(
    _some({"name": st.sampled_from(["p", "q"]), "port": st.sampled_from([0, 80, 81]), "protocol": st.just("UDP")}),
    max_size=2,
)
SERVICE_SPECS = _some({"ports": PORTS, "selector": LABELS, "clusterIP": st.just("None")})
ADDRESSES = st.sampled_from(["192.0.2.1", "192.0.2.2", "127.0.0.1", "2001:db8::1", "2001:DB8::1"])


KINDS = ("widget", "gadget", "map", "service", "slice")


@st.composite
def objects(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> tuple[str, dict[str, Any]]:
    """Draw an object and the collection that it belongs to."""
    name = draw(NAMES)
    kind = draw(st.sampled_from(kinds))
    if kind == "widget":
        path, made = WIDGETS, widget(name, draw(WIDGET_SPECS))
    elif kind == "gadget":
        path, made = GADGETS, gadget(name, draw(GADGET_SPECS))
    elif kind == "map":
        path, made = MAPS, config_map(name, draw(DATA))
    elif kind == "service":
        path, made = SERVICES, service(name, **draw(SERVICE_SPECS))
    else:
        path, made = (
            SLICES,
            slice_of(name, draw(st.sampled_from(["IPv4", "IPv6"])), *draw(st.lists(ADDRESSES, max_size=2))),
        )
    extra = draw(_some({"labels": LABELS, "annotations": LABELS}))
    if kind in {"widget", "gadget", "map"}:
        extra |= draw(_some({"finalizers": FINALIZERS}))
    return path, {**made, "metadata": {**made["metadata"], **extra}}


@st.composite
def operations(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> Operation:
    """Draw one operation."""
    path, made = draw(objects(kinds))
    one = f"{path}/{made['metadata']['name']}"
    content = {name: value for name, value in made.items() if name not in {"apiVersion", "kind"}}
    content["metadata"] = {name: value for name, value in made["metadata"].items() if name != "name"}
    params = draw(_some({"dryRun": st.just("All"), "fieldValidation": st.sampled_from(["Strict", "Ignore"])}))
    if path != WIDGETS:
        params.pop("dryRun", None)
    how = draw(
        st.sampled_from(
            ["create", "create", "get", "list", "put", "patch", "json", "apply", "apply", "status", "scale", "delete"]
        )
    )
    if how == "create":
        return Operation("POST", path, made, JSON, params)
    if how == "put":
        version = draw(st.sampled_from([f"{{rv:{one}}}", f"{{rv:{one}}}", "1", None]))
        metadata = made["metadata"] | ({"resourceVersion": version} if version else {})
        return Operation("PUT", one, {**made, "metadata": metadata}, JSON, params)
    if how == "patch":
        return Operation("PATCH", one, content, MERGE, params)
    if how == "json":
        return Operation("PATCH", one, draw(_json_patches()), JSON_PATCH, params)
    if how == "apply":
        params |= {"fieldManager": draw(MANAGERS)} | draw(_some({"force": st.just("true")}))
        return Operation("PATCH", one, made, APPLY, params)
    if how == "delete":
        body = draw(
            st.none()
            | st.sampled_from(
                [{"preconditions": {"resourceVersion": "1"}}, {"preconditions": {"uid": f"{{uid:{one}}}"}}]
            )
        )
        return Operation("DELETE", one, body, JSON if body else "")
    return draw(_others(path, one, how, params))


@st.composite
def _others(draw: st.DrawFn, path: str, one: str, how: str, params: dict[str, str]) -> Operation:
    if how == "list":
        selector = draw(
            _some({"labelSelector": st.sampled_from(["a", "!a", "a=x", "a in (x,y),b", "b!="]), "limit": st.just("1")})
        )
        # a configmap of the cluster's own is in every namespace
        return Operation("GET", WIDGETS if path == MAPS else path, params=selector)
    if how == "status":
        status = draw(_some({"phase": TEXTS | st.none(), "replicas": NUMBERS, "bogus": NUMBERS}))
        name = one.rpartition("/")[2]
        if draw(st.booleans()):
            return Operation(
                "PATCH", f"{WIDGETS}/{name}/status", {"status": status, "spec": {"size": 9}}, MERGE, params
            )
        made = {**widget(name), "status": status}
        del made["spec"]
        params |= {"fieldManager": draw(MANAGERS)} | draw(_some({"force": st.just("true")}))
        return Operation("PATCH", f"{WIDGETS}/{name}/status", made, APPLY, params)
    if how == "scale":
        return Operation(
            "PATCH", f"{WIDGETS}/{one.rpartition('/')[2]}/scale", {"spec": {"replicas": draw(NUMBERS)}}, MERGE
        )
    if path == SERVICES and draw(st.booleans()):
        return Operation("PATCH", one, {"spec": draw(SERVICE_SPECS)}, STRATEGIC, params)
    return Operation("GET", one)


@st.composite
def _json_patches(draw: st.DrawFn) -> list[dict[str, Any]]:
    paths = st.sampled_from(
        [
            "/spec/size",
            "/spec/parts",
            "/spec/parts/-",
            "/spec/parts/0",
            "/spec/replicas",
            "/data/k",
            "/metadata/labels",
            "/metadata/labels/a",
        ]
    )
    values = NUMBERS | TEXTS | st.just({"name": "p"}) | st.just({})
    one = st.builds(
        lambda op, path, value: {"op": op, "path": path, "value": value},
        st.sampled_from(["add", "replace", "test"]),
        paths,
        values,
    )
    gone = st.builds(lambda path: {"op": "remove", "path": path}, paths)
    return draw(st.lists(one | gone, min_size=1, max_size=2))


SEQUENCES = st.lists(st.sampled_from(KINDS), min_size=1, max_size=2, unique=True).flatmap(
    lambda kinds: st.lists(operations(kinds), min_size=2, max_size=12)
)
"""Requests sent to both servers, one after the other: about one kind or two, so that operations interact."""
