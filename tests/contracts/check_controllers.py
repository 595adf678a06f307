"""Checks of what a controller relies on when it creates, changes and deletes objects of its own."""

import datetime
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import trio

from contracts.lab import APPLY, MERGE, Lab, causes_of, install, status_of, widget
from contracts.widgets import CRDS, GROUP, WIDGETS
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.wire.conditions import Statement, settle

OURS = "llmkube-controller"
LABELS = {"app.kubernetes.io/managed-by": OURS}


async def apply(lab: Lab, path: str, manifest: dict[str, Any], **params: str) -> httpx.Response:
    """Apply under the controller's name, and by force only where that is asked for."""
    params = {"fieldManager": OURS, **params}
    return await lab.http.patch(path, content=json.dumps(manifest), headers=APPLY, params=params)


def owned(owner: dict[str, Any]) -> list[dict[str, Any]]:
    identity = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    named = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return [{**identity, **named, "controller": True, "blockOwnerDeletion": False}]


def workload(lab: Lab, kind: str, owner: dict[str, Any], **labels: str) -> tuple[str, dict[str, Any]]:
    """Return path and manifest of an object such as the controller makes, as small as a real server takes it."""
    selector = {"matchLabels": {"app": "chat"}}
    pod = {"containers": [{"name": "engine", "image": "example.org/x", "args": ["a"]}]}
    template = {"metadata": {"labels": {"app": "chat"}}, "spec": pod}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    metrics = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]
    metrics[0]["resource"]["target"]["averageUtilization"] = 80  # type: ignore[index]
    version, plural, spec = {
        "Deployment": ("apps/v1", "deployments", {"replicas": 1, "selector": selector, "template": template}),
        "Job": (
            "batch/v1",
            "jobs",
            {"backoffLimit": 4, "template": {"spec": {**pod, "restartPolicy": "Never"}}},
        ),
        "HorizontalPodAutoscaler": (
            "autoscaling/v2",
            "horizontalpodautoscalers",
            {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3, "metrics": metrics},
        ),
        "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets", {"maxUnavailable": 1, "selector": selector}),
        "PersistentVolumeClaim": (
            "v1",
            "persistentvolumeclaims",
            {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        ),
        "Service": (
            "v1",
            "services",
            {"selector": {"app": "chat"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        ),
    }[kind]
    metadata = {"name": "chat", "namespace": lab.namespace, "labels": {**LABELS, **labels}}
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    manifest = {"apiVersion": version, "kind": kind, "metadata": {**metadata, "ownerReferences": owned(owner)}}
    return f"{root}/namespaces/{lab.namespace}/{plural}/chat", {**manifest, "spec": spec}


NO_VERSION = "9223372036854775807"
"""A version that no object has: the counter of versions has 64 bits with a sign."""

MANY = 8


def only_new(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest whose apply can create, and do nothing else."""
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": NO_VERSION}}


@attrs.frozen
class TrialKind:
    """A kind that is there for one check."""

    group: str
    path: str

    @property
    def name(self) -> str:
        return f"trials.{self.group}"

    def named(self, name: str) -> dict[str, Any]:
        return {"apiVersion": f"{self.group}/v1", "kind": "Trial", "metadata": {"name": name}}


@asynccontextmanager
async def trial_kind(lab: Lab, status: dict[str, Any]) -> AsyncIterator[TrialKind]:
    """Install a kind with this schema of its status, and delete it afterwards if it is still there."""
    group = f"{lab.namespace}.llmkube.dev"
    kind = TrialKind(group, f"/apis/{group}/v1/namespaces/{lab.namespace}/trials")
    schema = {"type": "object", "properties": {"status": status}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": "trials", "singular": "trial", "kind": "Trial"},
        "versions": [{**version, "subresources": {"status": {}}}],
    }
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    await install(lab.http, {**body, "metadata": {"name": kind.name}})
    yield kind
    await lab.http.delete(f"{CRDS}/{kind.name}")


KINDS = ("Service", "Deployment", "Job", "HorizontalPodAutoscaler", "PodDisruptionBudget", "PersistentVolumeClaim")


async def check_a_service_is_made_and_changed_by_apply(lab: Lab) -> None:
    """An apply makes it, the same apply again writes nothing, and what is left out goes, labels included."""
    await _made_and_changed(lab, "Service")


async def check_a_change_is_made_onto_the_version_that_was_seen(lab: Lab) -> None:
    """A forced apply with an old resourceVersion conflicts and changes nothing; with the newest it is taken."""
    path, manifest = workload(lab, "Service", await lab.widget("owner"))
    first = (await apply(lab, path, manifest)).json()["metadata"]["resourceVersion"]
    await lab.http.patch(path, json={"metadata": {"annotations": {"theirs": "1"}}}, headers=MERGE)
    stale = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": first, "labels": {"x": "y"}}}
    status_of(await apply(lab, path, stale, force="true"), 409, "Conflict")
    live = await lab.get(path)
    assert live["metadata"]["labels"] == LABELS
    newest = {**manifest["metadata"], "resourceVersion": live["metadata"]["resourceVersion"], "labels": {"x": "y"}}
    answer = await apply(lab, path, {**manifest, "metadata": newest}, force="true")
    assert (answer.status_code, answer.json()["metadata"]["labels"]) == (200, {"x": "y"})
    assert answer.json()["metadata"]["annotations"] == {"theirs": "1"}


async def check_somebody_elses_object_is_left_alone(lab: Lab) -> None:
    """An apply that does not force conflicts with a manager that set the same field to another value."""
    path, manifest = workload(lab, "Service", await lab.widget("owner"))
    theirs = {"metadata": {"name": "chat"}, "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}}
    made = await lab.create(path.rpartition("/")[0], theirs, fieldManager="somebody")
    answer = await apply(lab, path, manifest)
    assert ("FieldManagerConflict", ".spec.selector") in causes_of(status_of(answer, 409, "Conflict"))
    assert (await lab.get(path))["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def check_a_service_may_be_made_and_not_changed(lab: Lab) -> None:
    """An apply with a version that no object has creates; onto what exists it is a conflict, and so it is if forced."""
    await _made_and_not_changed(lab, *workload(lab, "Service", await lab.widget("owner")))


async def check_a_custom_object_may_be_made_and_not_changed(lab: Lab) -> None:
    """The same of an object whose kind a definition has brought."""
    await _made_and_not_changed(lab, f"{lab.widgets}/a", widget("a"))


async def check_of_many_who_make_an_object_one_does(lab: Lab) -> None:
    """Whoever comes at the same time is refused, and nothing of theirs is in it."""
    path, manifest = workload(lab, "Service", await lab.widget("owner"))
    codes: dict[str, int] = {}

    async def make(name: str) -> None:
        metadata = {**manifest["metadata"], "labels": {name: "was-here"}}
        answer = await apply(lab, path, only_new({**manifest, "metadata": metadata}), fieldManager=name, force="true")
        codes[name] = answer.status_code

    async with trio.open_nursery() as nursery:
        for number in range(MANY):
            nursery.start_soon(make, f"m{number}")
    assert sorted(codes.values()) == [201, *[409] * (MANY - 1)]
    [first] = [name for name, code in codes.items() if code == 201]
    assert (await lab.get(path))["metadata"]["labels"] == {first: "was-here"}


async def check_a_deletion_may_name_the_uid(lab: Lab) -> None:
    """In the background, of this very object: a successor of the same name is not deleted in its place."""
    owner = await lab.widget("owner")
    path, manifest = workload(lab, "Service", owner)
    first = (await apply(lab, path, manifest)).json()["metadata"]["uid"]
    options = {"propagationPolicy": "Background", "preconditions": {"uid": first}}
    assert (await lab.http.request("DELETE", path, json=options)).status_code == 200
    second = (await apply(lab, path, manifest)).json()["metadata"]["uid"]
    assert first != second
    status_of(await lab.http.request("DELETE", path, json=options), 409, "Conflict")
    assert (await lab.get(path))["metadata"]["uid"] == second


async def check_a_deletion_may_name_the_version(lab: Lab) -> None:
    """A changed object is not deleted by an old version; by the newest version it is."""
    path, manifest = workload(lab, "Service", await lab.widget("owner"))
    seen = (await apply(lab, path, manifest)).json()["metadata"]
    await lab.http.patch(path, json={"metadata": {"annotations": {"theirs": "1"}}}, headers=MERGE)
    options = {"preconditions": {"uid": seen["uid"], "resourceVersion": seen["resourceVersion"]}}
    status_of(await lab.http.request("DELETE", path, json=options), 409, "Conflict")
    options["preconditions"]["resourceVersion"] = (await lab.get(path))["metadata"]["resourceVersion"]
    assert (await lab.http.request("DELETE", path, json=options)).status_code == 200
    await lab.wait_gone(path)


async def check_what_may_not_be_made_is_forbidden(lab: Lab) -> None:
    """An apply into a namespace that goes is a 403 with a sentence, as one over a quota is: not a 404, nor a 409."""
    home = f"{lab.namespace}-inner"
    await lab.create("/api/v1/namespaces", {"metadata": {"name": home}})
    inner = f"{WIDGETS}/namespaces/{home}/widgets"
    await lab.create(inner, widget("a", metadata={"finalizers": ["check.llmkube.dev/hold"]}))
    await lab.http.delete(f"/api/v1/namespaces/{home}")
    answer = await apply(lab, f"{inner}/b", only_new(widget("b")))
    assert status_of(answer, 403, "Forbidden")["message"]
    await lab.http.patch(f"{inner}/a", json={"metadata": {"finalizers": None}}, headers=MERGE)
    await lab.wait_gone(f"/api/v1/namespaces/{home}")


async def check_a_kind_that_is_uninstalled_is_not_found(lab: Lab) -> None:
    """Once its definition is gone, reading, applying and deleting of a kind all answer 404."""
    async with trial_kind(lab, {"type": "object"}) as kind:
        assert (await apply(lab, f"{kind.path}/a", kind.named("a"))).status_code == 201
        await lab.http.delete(f"{CRDS}/{kind.name}")
        await lab.wait_gone(kind.path)
        for answer in (
            await apply(lab, f"{kind.path}/a", kind.named("a")),
            await apply(lab, f"{kind.path}/b", only_new(kind.named("b"))),
            await lab.http.delete(f"{kind.path}/a"),
        ):
            assert answer.status_code == 404, answer.text


async def check_conditions_of_any_words_are_taken(lab: Lab) -> None:
    """Our schema refuses a kubelet's own reason and an endless message; as `settle` writes them it takes both."""
    [crd] = [crd for crd in all_crds() if crd["spec"]["names"]["kind"] == "InferenceService"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    async with trial_kind(lab, {"type": "object", "properties": {"conditions": schema["conditions"]}}) as kind:
        assert (await apply(lab, f"{kind.path}/a", kind.named("a"))).status_code == 201
        for reason, message in (("OutOfnvidia.com/gpu", ""), ("x" * 2000, ""), ("", ""), ("Long", "a" * 40_000)):
            statement = Statement("Progressing", holds=True, reason=reason, message=message)
            [made] = settle([statement], (), generation=1, now=datetime.datetime(2025, 6, 1, tzinfo=datetime.UTC))
            for condition, code in (({**made, "reason": reason, "message": message}, 422), (made, 200)):
                status = {**kind.named("a"), "status": {"conditions": [condition]}}
                answer = await apply(lab, f"{kind.path}/a/status", status)
                assert answer.status_code == code, (reason, answer.text)


async def check_a_finalizer_is_put_on_and_off_by_merge(lab: Lab) -> None:
    """With the resourceVersion that was seen: it keeps the object until it is taken off, and a stale one conflicts."""
    made = await lab.widget("a")
    path, seen = f"{lab.widgets}/a", made["metadata"]["resourceVersion"]
    held = {"metadata": {"resourceVersion": seen, "finalizers": ["inference.llmkube.dev/in-use"]}}
    assert (await lab.http.patch(path, json=held, headers=MERGE)).status_code == 200
    status_of(await lab.http.patch(path, json=held, headers=MERGE), 409, "Conflict")
    await lab.http.delete(path)
    marked = await lab.get(path)
    assert marked["metadata"]["deletionTimestamp"]
    patch = {"status": {"phase": "Deleting"}}
    assert (await lab.http.patch(f"{path}/status", json=patch, headers=MERGE)).status_code == 200
    newest = (await lab.get(path))["metadata"]["resourceVersion"]
    free = {"metadata": {"resourceVersion": newest, "finalizers": []}}
    assert (await lab.http.patch(path, json=free, headers=MERGE)).status_code == 200
    await lab.wait_gone(path)


async def check_a_status_is_applied_onto_the_version_that_was_seen(lab: Lab) -> None:
    """It touches no spec and counts no generation; a stale version conflicts; what is left out of the next one goes."""
    made = await lab.widget("a")
    path = f"{lab.widgets}/a/status"
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "a"}}
    seen = {**body["metadata"], "resourceVersion": made["metadata"]["resourceVersion"]}  # type: ignore[dict-item]
    first = await apply(lab, path, {**body, "metadata": seen, "status": {"phase": "x", "replicas": 1}}, force="true")
    assert first.json()["status"] == {"phase": "x", "replicas": 1}
    assert (first.json()["spec"], first.json()["metadata"]["generation"]) == (made["spec"], 1)
    again = await apply(lab, path, {**body, "metadata": seen, "status": {"phase": "y"}}, force="true")
    status_of(again, 409, "Conflict")
    newest = {**seen, "resourceVersion": first.json()["metadata"]["resourceVersion"]}
    second = await apply(lab, path, {**body, "metadata": newest, "status": {"phase": "y"}}, force="true")
    assert second.json()["status"] == {"phase": "y"}


async def check_a_watch_shows_what_its_selector_chooses(lab: Lab) -> None:
    """An object that loses the label is DELETED for watches of that label, and ADDED when it gets the label."""
    path, manifest = workload(lab, "Service", await lab.widget("owner"))
    services = path.rpartition("/")[0]
    await apply(lab, path, manifest)
    selector = f"app.kubernetes.io/managed-by={OURS}"
    listing = await lab.get(services, labelSelector=selector)
    assert [item["metadata"]["name"] for item in listing["items"]] == ["chat"]
    version = listing["metadata"]["resourceVersion"]
    async with lab.watch(services, labelSelector=selector, resourceVersion=version) as next_event:
        for labels, seen in (({"x": "y"}, "DELETED"), (LABELS, "ADDED")):
            changed = {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}
            assert (await apply(lab, path, changed)).status_code == 200
            assert (await next_event())["type"] == seen


async def check_a_list_may_be_of_an_earlier_moment(lab: Lab) -> None:
    """With `Exact`, a list is as it was at that resourceVersion: what a cache that lags behind would answer."""
    first = await lab.widget("a")
    second = await lab.widget("b")
    await lab.http.patch(f"{lab.widgets}/a", json={"spec": {"size": 9}}, headers=MERGE)
    moments = [(first, [("a", 3)]), (second, [("a", 3), ("b", 3)])]
    for then, there in moments:
        version = then["metadata"]["resourceVersion"]
        listing = await lab.get(lab.widgets, resourceVersion=version, resourceVersionMatch="Exact")
        assert [(item["metadata"]["name"], item["spec"]["size"]) for item in listing["items"]] == there


# -- of servers with the kinds that run things ------------------------------------------------------------------------


async def workloads_are_made_and_changed_by_apply(lab: Lab) -> None:
    """The same of Deployments, Jobs, autoscalers, budgets and claims."""
    for kind in KINDS[1:]:
        await _made_and_changed(lab, kind)


async def workloads_may_be_made_and_not_changed(lab: Lab) -> None:
    """An apply of them, too, can be one that creates or is a conflict."""
    owner = await lab.widget("owner")
    for kind in KINDS[1:]:
        await _made_and_not_changed(lab, *workload(lab, kind, owner))


async def workloads_go_with_their_owner(lab: Lab) -> None:
    """All of them are collected once their owner is gone."""
    owner = await lab.widget("owner")
    paths = []
    for kind in KINDS:
        path, manifest = workload(lab, kind, owner)
        assert (await apply(lab, path, manifest)).status_code == 201
        paths.append(path)
    await lab.http.delete(f"{lab.widgets}/owner")
    for path in paths[:-1]:
        await lab.wait_gone(path)
    await lab.http.patch(paths[-1], json={"metadata": {"finalizers": None}}, headers=MERGE)  # a claim is protected
    await lab.wait_gone(paths[-1])


async def a_template_changes_field_by_field(lab: Lab) -> None:
    """In a Deployment's container, an argument is replaced, a variable is removed, and a foreign annotation remains."""
    path, manifest = workload(lab, "Deployment", await lab.widget("owner"))
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    await apply(lab, path, manifest)
    theirs = {"spec": {"template": {"metadata": {"annotations": {"restarted": "now"}}}}}
    await lab.http.patch(path, json=theirs, headers=MERGE)
    container |= {"env": [{"name": "B", "value": "2"}], "args": ["b"]}
    answer = await apply(lab, path, manifest, force="true")
    template = answer.json()["spec"]["template"]
    [kept] = template["spec"]["containers"]
    assert (kept["args"], kept["env"]) == (["b"], [{"name": "B", "value": "2"}])
    assert template["metadata"]["annotations"] == {"restarted": "now"}
    assert answer.json()["metadata"]["generation"] == 3


WORKLOAD_CHECKS = (
    workloads_are_made_and_changed_by_apply,
    workloads_may_be_made_and_not_changed,
    workloads_go_with_their_owner,
    a_template_changes_field_by_field,
)
"""For servers that have Deployments and their like: a real one, and the embedded one in tests of the controller."""


async def _made_and_changed(lab: Lab, kind: str) -> None:
    owner = (await lab.http.get(f"{lab.widgets}/owner")).json()
    if owner["kind"] == "Status":
        owner = await lab.widget("owner")
    path, manifest = workload(lab, kind, owner, team="ml")
    answer = await apply(lab, path, manifest)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    [reference] = made["metadata"]["ownerReferences"]
    assert (reference["uid"], reference["controller"]) == (owner["metadata"]["uid"], True)
    again = (await apply(lab, path, manifest)).json()
    assert (again["spec"], _entry(again)) == (made["spec"], _entry(made))  # its own controller may have written, too
    del manifest["metadata"]["labels"]["team"]
    answer = await apply(lab, path, manifest, force="true")
    assert (answer.status_code, answer.json()["metadata"]["labels"]) == (200, LABELS)
    assert _entry(answer.json())["operation"] == "Apply"


async def _made_and_not_changed(lab: Lab, path: str, manifest: dict[str, Any]) -> None:
    """Each of our applies is as harmless to a stranger's object as can be: he has made it with the very same fields."""
    collection = path.rpartition("/")[0]
    answer = await apply(lab, path, only_new(manifest))
    assert answer.status_code == 201, answer.text
    made = answer.json()["metadata"]
    assert made["resourceVersion"] != NO_VERSION
    assert "deletionTimestamp" not in made
    assert "f:resourceVersion" not in json.dumps(made["managedFields"])
    theirs = {**manifest, "metadata": {"name": "theirs"}}
    await lab.create(collection, theirs, fieldManager="somebody")
    mine = {**manifest, "metadata": {**manifest["metadata"], "name": "theirs"}}
    for params in ({}, {"force": "true"}):
        answer = await apply(lab, f"{collection}/theirs", only_new(mine), **params)
        assert causes_of(status_of(answer, 409, "Conflict")) == []
        there = (await lab.get(f"{collection}/theirs"))["metadata"]
        assert OURS not in {entry["manager"] for entry in there["managedFields"]}
        assert "ownerReferences" not in there
    assert (await apply(lab, f"{collection}/theirs", mine)).status_code == 200, "it would have been no conflict"


def _entry(made: dict[str, Any]) -> dict[str, Any]:
    """Return what the controller owns, and since when."""
    [entry] = [entry for entry in made["metadata"]["managedFields"] if entry["manager"] == OURS]
    return entry
