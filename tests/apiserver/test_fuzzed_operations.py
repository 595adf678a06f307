"""Whatever is sent, it gets an answer: requests made of valid ones and mutated by chance, from one seed."""

import json
import random
import time
import traceback
from collections import Counter
from datetime import UTC, datetime
from urllib.parse import urlencode

import httpx
import trio

from contracts.gadgets import gadget_crd
from contracts.widgets import CRDS, WIDGETS, widget_crd
from lengths import API_OPERATIONS
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.base.http.message import Response

SEED = int(__import__("os").environ.get("SEED", "17"))
KNOWN_500 = (
    "failed to create typed patch object",
    "unknown patch type",
    "map: ",
    "$",
    "strconv.ParseUint",
    "resourceVersion",
    "Internal error occurred: Object 'apiVersion' is missing",
    "Internal error occurred: the spec replicas field",
    "an item of a list that merges by key must be an object",
)
"""Requests with a client error that kube-apiserver answers with a 500."""

SLOWEST_SECONDS = 5.0  # of processor, for one request: other programs do not count
NAMESPACED = "/api/v1/namespaces/default"
PATHS = {
    f"{NAMESPACED}/configmaps": {"data": {"a": "1", "b": "2"}, "binaryData": {"c": "aGk="}},
    f"{NAMESPACED}/secrets": {"stringData": {"a": "1"}, "type": "Opaque"},
    f"{NAMESPACED}/services": {
        "spec": {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}], "type": "ClusterIP"}
    },
    f"{NAMESPACED}/events": {
        "involvedObject": {"kind": "Model", "name": "m", "namespace": "default"},
        "reason": "R",
        "count": 1,
    },
    f"{NAMESPACED}/endpoints": {"subsets": [{"addresses": [{"ip": "10.0.0.9"}], "ports": [{"port": 1}]}]},
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": True}}],
        "ports": [{"port": 80, "name": "p"}],
    },
    "/apis/coordination.k8s.io/v1/namespaces/default/leases": {
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}
    },
    "/api/v1/namespaces": {"spec": {"finalizers": ["kubernetes"]}},
    f"{WIDGETS}/namespaces/default/widgets": {
        "spec": {"size": 3, "parts": [{"name": "x"}, {"name": "y"}], "colour": "red"}
    },
    f"{WIDGETS}/namespaces/default/gadgets": {"spec": {"items": [{"key": "k"}], "tags": ["a", "b"]}},
    CRDS: {k: v for k, v in widget_crd().items() if k == "spec"},
}
MEDIA = (
    "application/json",
    "application/yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf",
    "text/plain",
    "",
)
HOSTILE = (
    None, True, -1, 0, 2**63, 10**30, 1e300, -0.0, "", "\ud800", "a\udfff", "é" * 300, "../..", "9" * 5000, "-",
    "a/b/c", [], {}, [None], [[]], {"": ""}, {"$patch": ["delete"]}, {"$patch": "replace"}, {"$retainKeys": [{}]},
    "$patch", {"$setElementOrder/ports": [{"port": {}}]}, {"$deleteFromPrimitiveList/finalizers": [{}, 1]},
    [1, "a", {}, None], {"a": {"b": {"c": [{"d": None}]}}}, "2026-01-01T00:00:00Z", "99999999999", "x" * 70_000,
)  # fmt: skip
MANAGED = (
    [{}], [{"manager": "m"}], "x", [{"operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"k:{": {}}}],
    [{"operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"k:" + "[" * 3000: {}}}],
    [{"operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"v:1": {}, "i:0": {}}}, "manager": 3}],
    [{"operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {'k:{"a":[]}': []}, "time": []}],
)  # fmt: skip
NAMES = ("a", "b", "c", "default", "kube-system", "UPPER", "%00", "a%2Fb", "é", "x" * 300, "widgets.check.llmkube.dev")
PARAMS = {
    "fieldManager": ("a", "b", "", "\n", "x" * 200),
    "fieldValidation": ("Strict", "Warn", "Ignore", "Maybe"),
    "force": ("true", "false", "x"),
    "dryRun": ("All", "All", "Some"),
    "labelSelector": ("a=b", "a in (", "!a", ",,,", "a>1", "a in (x,y),!b", "a" * 400, b"\xff"),
    "fieldSelector": ("metadata.name=a", "spec.x=1", "=", "metadata.name!=", "type=Opaque"),
    "limit": ("1", "-1", "x", "9" * 30),
    "continue": ("x", "eyJydiI6MX0", "W1tbW1tb" * 900, "\u00e9"),
    "resourceVersion": ("0", "1", "9" * 18, "x"),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "x"),
    "propagationPolicy": ("Foreground", "Orphan", "x"),
}


class Fuzz:
    """Draws requests; what it draws depends on the seed and on nothing else."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def request(self):
        rng = self.rng
        method = rng.choice(("POST", "PUT", "PATCH", "PATCH", "PATCH", "GET", "DELETE"))
        path = rng.choice(list(PATHS))
        where = (
            path
            if method == "POST" or rng.random() < 0.1
            else f"{path}/{rng.choice(NAMES[:3] if rng.random() < 0.8 else NAMES)}"
        )
        if rng.random() < 0.15:
            where += rng.choice(("/status", "/scale", "/finalize", "/x"))
        params = {name: rng.choice(PARAMS[name]) for name in PARAMS if rng.random() < 0.03}
        media = (
            rng.choice(MEDIA[2:6]) if method == "PATCH" and rng.random() < 0.95 else rng.choice((MEDIA[0],) * 6 + MEDIA)
        )
        if media == MEDIA[5]:
            params.setdefault("fieldManager", "fuzz")
        accept = rng.choice(
            (
                "",
                "application/json;as=Table;v=v1;g=meta.k8s.io",
                "*/*",
                "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            )
        )
        headers = {name: value for name, value in (("content-type", media), ("accept", accept)) if value}
        return method, f"{where}?{urlencode(params)}", headers, b"" if method == "GET" else self.body(path, media)

    def body(self, path, media):
        rng = self.rng
        patching = media == MEDIA[2]
        content = [self.operation() for _ in range(rng.randrange(4))] if patching else self.manifest(path)
        for _ in range(rng.randrange(4)):
            content = self.mutated(content)
        text = json.dumps(content).encode()
        if rng.random() < 0.1:
            text = self.torn(text)
        return b"k8s\x00" + text if media == MEDIA[6] else text

    def manifest(self, path):
        rng = self.rng
        group, _, plural = path.removeprefix("/apis/").partition("/") if path.startswith("/apis/") else ("", "", path)
        version = f"{group}/v1" if group else "v1"
        kinds = {
            "configmaps": "ConfigMap",
            "endpointslices": "EndpointSlice",
            "customresourcedefinitions": "CustomResourceDefinition",
        }
        plural = plural.rpartition("/")[2]
        metadata = {"name": rng.choice("abc"), "labels": {"a": "b"}, "annotations": {"x": "y"}}
        if rng.random() < 0.2:
            metadata["managedFields"] = rng.choice(MANAGED)
        if rng.random() < 0.1:
            metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u"}]
        if rng.random() < 0.1:
            metadata["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "[" * rng.choice(
                (1, 900, 5000)
            )
        kind = kinds.get(plural, plural.capitalize().removesuffix("s"))
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **json.loads(json.dumps(PATHS[path]))}

    def operation(self):
        rng = self.rng
        places = (
            "/data/a",
            "/spec",
            "/spec/size",
            "/metadata/labels",
            "/metadata",
            "",
            "/spec/parts/0",
            "/spec/parts/-",
            "/x~1y",
            "/spec/ports/9" + "9" * 5000,
        )
        drawn = {
            "op": rng.choice(("add", "remove", "replace", "move", "copy", "test", "x")),
            "path": rng.choice(places),
        }
        if rng.random() < 0.7:
            drawn["value"] = rng.choice(HOSTILE)
        if rng.random() < 0.5:
            drawn["from"] = rng.choice(places)
        return drawn

    def mutated(self, content):
        """Return the content with one place in it replaced, dropped or doubled."""
        rng = self.rng
        if not isinstance(content, dict | list) or not content or rng.random() < 0.15:
            return rng.choice(HOSTILE)
        at = rng.choice(list(content) if isinstance(content, dict) else range(len(content)))
        changed = content.copy()
        if rng.random() < 0.15:
            del changed[at]
        elif rng.random() < 0.1:
            changed[at] = json.loads("[" * 190 + "]" * 190)
        else:
            changed[at] = self.mutated(content[at])
        return changed

    def torn(self, text):
        rng = self.rng
        at = rng.randrange(len(text) + 1)
        return rng.choice(
            (
                text[:at],
                text[:at] + bytes([rng.randrange(256)]) + text[at:],
                text[:at] + b"\\ud800" + text[at:],
                b"[" * 5000 + text,
                text.replace(b'"a"', b'"a":1,"a"', 1),
                b"a: [" + text,
            )
        )


class Watched:
    """A handler that notes what its server does not handle, and answers all the same."""

    def __init__(self, handler):
        self.handler = handler
        self.failures = []

    async def __call__(self, exchange):
        try:
            await self.handler(exchange)
        except Exception:  # noqa: BLE001  # what is to be found
            self.failures.append(traceback.format_exc())
            await exchange.respond(Response(599))


async def test_every_request_gets_an_answer():
    """No mutated request makes the server fail, and none keeps it busy for seconds."""
    fuzz = Fuzz(SEED)
    codes = Counter()
    server = ApiServer(Store(), utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC), rng=random.Random(SEED))
    await server.ensure_namespaces()
    watched = Watched(server.handle)
    async with (
        open_transport(watched) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver") as http,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.run_housekeeping)
        for crd in (widget_crd(), gadget_crd()):
            assert (await http.post(CRDS, json=crd)).status_code == 201
        for number in range(API_OPERATIONS):
            method, target, headers, body = fuzz.request()
            began = time.process_time()
            answer = await http.request(method, target, headers=headers, content=body)
            asked = f"request {number}: {method} {target[:200]} {headers} {body[:600]}"
            if time.process_time() - began > SLOWEST_SECONDS:
                watched.failures.append("it took long")
            if answer.status_code == 500 and not answer.json()["message"].startswith(KNOWN_500):
                watched.failures.append(answer.text)
            codes[answer.status_code] += 1
            assert not watched.failures, f"{asked}\n{watched.failures[0]}"
        nursery.cancel_scope.cancel()
    assert codes.keys() >= {200, 201, 400, 404, 415, 422}, codes
