"""The contract of an API server, as plain calls: what our client and kubectl rely on, whoever answers.

`check_api_server(client)` runs every check over any server that an httpx client can reach: the embedded one in memory
and over TLS always, a real kube-apiserver when there is one. Each check works in a namespace of its own.
"""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import trio

GROUP = "check.llmkube.dev"
WIDGETS = f"/apis/{GROUP}/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATIENCE_SECONDS = 30.0

MERGE = {"content-type": "application/merge-patch+json"}
JSON_PATCH = {"content-type": "application/json-patch+json"}
STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}
APPLY = {"content-type": "application/apply-patch+yaml"}


def widget_crd() -> dict[str, Any]:
    """A CRD with a default, bounds, a keyed list, a CEL rule, both subresources and a printer column."""
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                    "replicas": {"type": "integer", "minimum": 0},
                    "frozen": {
                        "type": "string",
                        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "frozen is immutable"}],
                    },
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "weight": {"type": "integer"}},
                        },
                    },
                },
            },
            "status": {
                "type": "object",
                "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}},
            },
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [version],
        },
    }


@attrs.frozen(eq=False)
class Lab:
    """One check's workplace: a client and a namespace that nobody else uses."""

    http: httpx.AsyncClient
    namespace: str

    @property
    def widgets(self) -> str:
        return f"{WIDGETS}/namespaces/{self.namespace}/widgets"

    def core(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}"

    async def create(self, path: str, manifest: dict[str, Any], **params: Any) -> Any:
        answer = await self.http.post(path, json=manifest, params=params)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def widget(self, name: str, **spec: Any) -> Any:
        return await self.create(self.widgets, widget(name, **spec))

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def watch(self, path: str, **params: Any) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        """Yield a function that returns the watch's next event, or None at its clean end."""
        async with self.http.stream("GET", path, params={"watch": "true", **params}, timeout=None) as answer:
            assert answer.status_code == 200, await answer.aread()
            lines = answer.aiter_lines()

            async def next_event() -> Any:
                with trio.fail_after(PATIENCE_SECONDS):
                    line = await anext(lines, "")
                return json.loads(line) if line else None

            yield next_event

    async def wait_gone(self, path: str) -> None:
        async def gone() -> bool:
            return (await self.http.get(path)).status_code == 404

        await wait_until(gone)


async def wait_until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another process does in its own time; there is no event to wait for."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not await true():  # noqa: ASYNC110 (the event would be in the server's process)
            await trio.sleep(0.02)


def widget(name: str, *, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    manifest = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name, **(metadata or {})}}
    return {**manifest, "spec": {"size": 3, **spec}}


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {}}


def status_of(answer: httpx.Response, code: int, reason: str) -> dict[str, Any]:
    """Return the Status of a refused request after a look at its envelope."""
    assert answer.status_code == code, answer.text
    status: dict[str, Any] = answer.json()
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert (status["code"], status["reason"]) == (code, reason)
    return status


NOT_CHECKED = ("FieldValueInvalid", "<nil>")
"""The cause that says that rules were not checked because of the other causes."""


def causes_of(status: dict[str, Any]) -> list[tuple[str, str]]:
    return [(cause["reason"], cause.get("field", "")) for cause in status["details"].get("causes", [])]


# -- objects -----------------------------------------------------------------------------------------------------------


async def check_a_created_object_gets_its_identity(lab: Lab) -> None:
    """A new object has a uid, a creation time, generation 1, its defaults, and no field that the schema lacks."""
    made = await lab.create(lab.widgets, widget("a", unknown=1))
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["namespace"] == lab.namespace
    assert made["spec"] == {"size": 3, "colour": "red"}
    assert await lab.get(f"{lab.widgets}/a") == made


async def check_a_status_sent_on_create_is_dropped(lab: Lab) -> None:
    """Status belongs to its subresource from the first moment on."""
    made = await lab.create(lab.widgets, {**widget("a"), "status": {"phase": "Ready"}})
    assert "status" not in made


async def check_names_are_generated(lab: Lab) -> None:
    """`generateName` gives each object a name of its own with that prefix and five letters."""
    manifest = {**widget(""), "metadata": {"generateName": "job-"}}
    names = [(await lab.create(lab.widgets, manifest))["metadata"]["name"] for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def check_errors_are_statuses(lab: Lab) -> None:
    """Each refusal is a Status with the code, reason, details and sentence that clients parse."""
    await lab.widget("a")
    status = status_of(await lab.http.get(f"{lab.widgets}/nope"), 404, "NotFound")
    assert status["message"] == f'widgets.{GROUP} "nope" not found'
    assert status["details"] == {"name": "nope", "group": GROUP, "kind": "widgets"}
    status = status_of(await lab.http.post(lab.widgets, json=widget("a")), 409, "AlreadyExists")
    assert status["message"] == f'widgets.{GROUP} "a" already exists'
    answer = await lab.http.post(f"{WIDGETS}/namespaces/no-such-home/widgets", json=widget("a"))
    status = status_of(answer, 404, "NotFound")
    assert status["message"] == 'namespaces "no-such-home" not found'
    answer = await lab.http.post(lab.widgets, content=b"{", headers={"content-type": "application/json"})
    status_of(answer, 400, "BadRequest")
    answer = await lab.http.post(lab.widgets, content=b"<a/>", headers={"content-type": "application/xml"})
    status_of(answer, 415, "UnsupportedMediaType")
    answer = await lab.http.put(f"{lab.widgets}/a", json=widget("b"))
    status = status_of(answer, 400, "BadRequest")
    assert status["message"] == "the name of the object (b) does not match the name on the URL (a)"
    assert (await lab.http.get("/apis/no.such.group/v1/things")).status_code == 404


async def check_invalid_objects_name_every_field(lab: Lab) -> None:
    """All violations come at once, each with its path, in kube-apiserver's words."""
    answer = await lab.http.post(lab.widgets, json=widget("a", size=11, colour="green"))
    status = status_of(answer, 422, "Invalid")
    assert status["details"]["kind"] == "Widget"
    assert ("FieldValueInvalid", "spec.size") in causes_of(status)
    assert ("FieldValueNotSupported", "spec.colour") in causes_of(status)
    assert status["message"].startswith(f'Widget.{GROUP} "a" is invalid: ')
    assert "spec.size in body should be less than or equal to 10" in status["message"]
    answer = await lab.http.post(lab.widgets, json={**widget("a"), "spec": {}})
    assert causes_of(status_of(answer, 422, "Invalid")) == [("FieldValueRequired", "spec.size"), NOT_CHECKED]
    answer = await lab.http.post(lab.widgets, json=widget("Not_A_Name"))
    assert causes_of(status_of(answer, 422, "Invalid")) == [("FieldValueInvalid", "metadata.name")]


async def check_cel_rules_see_the_old_object(lab: Lab) -> None:
    """A transition rule refuses a change and lets a repetition through."""
    await lab.widget("a", frozen="ice")
    path = f"{lab.widgets}/a"
    answer = await lab.http.patch(path, json={"spec": {"frozen": "water"}}, headers=MERGE)
    assert "frozen is immutable" in status_of(answer, 422, "Invalid")["message"]
    answer = await lab.http.patch(path, json={"spec": {"frozen": "ice", "size": 4}}, headers=MERGE)
    assert answer.status_code == 200


async def check_field_validation_modes(lab: Lab) -> None:
    """Unknown and duplicate fields are refused, warned of or ignored, as the client asks."""
    manifest = widget("a", bogus=1)
    answer = await lab.http.post(lab.widgets, json=manifest, params={"fieldValidation": "Strict"})
    assert 'unknown field "spec.bogus"' in status_of(answer, 400, "BadRequest")["message"]
    answer = await lab.http.post(lab.widgets, json=manifest, params={"fieldValidation": "Warn", "dryRun": "All"})
    assert answer.headers.get_list("warning") == ['299 - "unknown field \\"spec.bogus\\""']
    answer = await lab.http.post(lab.widgets, json=manifest, params={"fieldValidation": "Ignore"})
    assert answer.status_code == 201
    assert "warning" not in answer.headers
    body = json.dumps(widget("b")).replace('"size": 3', '"size": 3, "size": 4').encode()
    headers = {"content-type": "application/json"}
    answer = await lab.http.post(lab.widgets, content=body, headers=headers, params={"fieldValidation": "Strict"})
    assert "duplicate field" in status_of(answer, 400, "BadRequest")["message"]


async def check_dry_run_changes_nothing(lab: Lab) -> None:
    """A dry run answers as the real thing and leaves no trace."""
    answer = await lab.http.post(lab.widgets, json=widget("a"), params={"dryRun": "All"})
    assert answer.status_code == 201
    assert answer.json()["spec"]["colour"] == "red"
    assert "resourceVersion" not in answer.json()["metadata"]
    assert (await lab.http.get(f"{lab.widgets}/a")).status_code == 404
    made = await lab.widget("a")
    answer = await lab.http.delete(f"{lab.widgets}/a", params={"dryRun": "All"})
    assert answer.status_code == 200
    assert await lab.get(f"{lab.widgets}/a") == made
    answer = await lab.http.post(lab.widgets, json=widget("c"), params={"dryRun": "Some"})
    status_of(answer, 422, "Invalid")


# -- updates -----------------------------------------------------------------------------------------------------------


async def check_updates_need_the_current_version(lab: Lab) -> None:
    """An update with an old resourceVersion conflicts; one of a custom object without any is refused."""
    made = await lab.widget("a")
    path = f"{lab.widgets}/a"
    first = await lab.http.put(path, json={**made, "spec": {"size": 4}})
    assert first.status_code == 200
    assert first.json()["metadata"]["generation"] == 2
    status = status_of(await lab.http.put(path, json={**made, "spec": {"size": 5}}), 409, "Conflict")
    assert status["message"] == (
        f'Operation cannot be fulfilled on widgets.{GROUP} "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    answer = await lab.http.put(path, json=widget("a"))
    assert causes_of(status_of(answer, 422, "Invalid")) == [("FieldValueInvalid", "metadata.resourceVersion")]
    await lab.create(lab.core("configmaps"), config_map("c"))
    answer = await lab.http.put(f"{lab.core('configmaps')}/c", json=config_map("c", {"a": "b"}))
    assert answer.status_code == 200  # built-in kinds may be overwritten unseen


async def check_a_write_that_changes_nothing_is_none(lab: Lab) -> None:
    """The same object again keeps its resourceVersion and wakes nobody."""
    made = await lab.widget("a")
    path = f"{lab.widgets}/a"
    assert (await lab.http.put(path, json=made)).json()["metadata"]["resourceVersion"] == (
        made["metadata"]["resourceVersion"]
    )
    answer = await lab.http.patch(path, json={"spec": {"size": 3}}, headers=MERGE)
    assert answer.json()["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def check_immutable_metadata(lab: Lab) -> None:
    """Identity does not change: a foreign uid is refused, the server's own fields stay as they were."""
    made = await lab.widget("a")
    path = f"{lab.widgets}/a"
    answer = await lab.http.patch(path, json={"metadata": {"uid": "other"}}, headers=MERGE)
    assert set(causes_of(status_of(answer, 422, "Invalid"))) == {("FieldValueInvalid", "metadata.uid")}
    answer = await lab.http.put(path, json={**made, "metadata": {**made["metadata"], "uid": "other"}})
    status_of(answer, 409, "Conflict")
    answer = await lab.http.patch(f"{path}/status", json={"metadata": {"uid": "other"}}, headers=MERGE)
    assert answer.status_code == 200  # there, metadata is not looked at
    answer = await lab.http.patch(path, json={"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}, headers=MERGE)
    assert answer.json()["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    answer = await lab.http.patch(path, json={"metadata": {"generation": 99, "labels": {"a": "b"}}}, headers=MERGE)
    after = answer.json()["metadata"]
    assert (after["uid"], after["generation"]) == (made["metadata"]["uid"], 1)
    assert after["creationTimestamp"] == made["metadata"]["creationTimestamp"]


async def check_patches(lab: Lab) -> None:
    """Merge, JSON and strategic patches change what they say and are refused where they do not belong."""
    await lab.widget("a", replicas=1)
    path = f"{lab.widgets}/a"
    answer = await lab.http.patch(path, json={"spec": {"replicas": None, "size": 5}}, headers=MERGE)
    assert answer.json()["spec"] == {"size": 5, "colour": "red"}
    operations = [{"op": "test", "path": "/spec/size", "value": 5}, {"op": "replace", "path": "/spec/size", "value": 6}]
    answer = await lab.http.patch(path, json=operations, headers=JSON_PATCH)
    assert answer.json()["spec"]["size"] == 6
    answer = await lab.http.patch(path, json=operations, headers=JSON_PATCH)
    assert answer.status_code == 422
    answer = await lab.http.patch(path, json={}, headers=STRATEGIC)
    status_of(answer, 415, "UnsupportedMediaType")
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"name": "a", "port": 80}]}}
    await lab.create(lab.core("services"), service)
    patch = {"spec": {"ports": [{"name": "b", "port": 81}]}}
    answer = await lab.http.patch(f"{lab.core('services')}/s", json=patch, headers=STRATEGIC)
    assert sorted(port["port"] for port in answer.json()["spec"]["ports"]) == [80, 81]
    answer = await lab.http.patch(path, json={"metadata": {"resourceVersion": "1"}}, headers=MERGE)
    status_of(answer, 409, "Conflict")


async def check_apply_owns_fields(lab: Lab) -> None:
    """An apply creates, conflicts over others' fields, takes them by force, and drops what it stops naming."""
    path = f"{lab.widgets}/a"

    async def apply(manager: str, spec: dict[str, Any], **params: Any) -> httpx.Response:
        manifest = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec}
        params = {"fieldManager": manager, **params}
        return await lab.http.patch(path, content=json.dumps(manifest), headers=APPLY, params=params)

    assert (await apply("one", {"size": 3, "replicas": 1})).status_code == 201
    answer = await apply("two", {"replicas": 2})
    status = status_of(answer, 409, "Conflict")
    assert causes_of(status) == [("FieldManagerConflict", ".spec.replicas")]
    assert status["message"] == 'Apply failed with 1 conflict: conflict with "one": .spec.replicas'
    answer = await apply("two", {"replicas": 2}, force="true")
    assert answer.json()["spec"]["replicas"] == 2
    answer = await apply("one", {"size": 3})
    assert answer.json()["spec"]["replicas"] == 2
    answer = await apply("two", {})
    assert "replicas" not in answer.json()["spec"]
    before = (await lab.get(path))["metadata"]["resourceVersion"]
    assert (await apply("one", {"size": 3})).json()["metadata"]["resourceVersion"] == before
    answer = await lab.http.patch(path, content="{}", headers=APPLY)
    assert answer.status_code in {400, 422}  # without a field manager


async def check_status_is_a_subresource(lab: Lab) -> None:
    """A write to status touches nothing else, a write to the object leaves status alone, and only spec counts up."""
    await lab.widget("a")
    path = f"{lab.widgets}/a"
    patch = {"spec": {"size": 9}, "status": {"phase": "Ready"}, "metadata": {"labels": {"x": "y"}}}
    answer = await lab.http.patch(f"{path}/status", json=patch, headers=MERGE)
    after = answer.json()
    assert (after["spec"]["size"], after["status"]["phase"], after["metadata"]["generation"]) == (3, "Ready", 1)
    answer = await lab.http.patch(path, json={"spec": {"size": 4}, "status": {"phase": "Gone"}}, headers=MERGE)
    after = answer.json()
    assert (after["spec"]["size"], after["status"]["phase"], after["metadata"]["generation"]) == (4, "Ready", 2)
    manifest = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "a"}, "status": {"replicas": 2}}
    answer = await lab.http.patch(
        f"{path}/status", content=json.dumps(manifest), headers=APPLY, params={"fieldManager": "m", "force": "true"}
    )
    assert answer.json()["status"] == {"phase": "Ready", "replicas": 2}
    owners = {(entry["manager"], entry.get("subresource", "")) for entry in answer.json()["metadata"]["managedFields"]}
    assert ("m", "status") in owners


async def check_scale_is_a_subresource(lab: Lab) -> None:
    """Scale shows the replica counts and writes the wanted one."""
    await lab.widget("a", replicas=1)
    path = f"{lab.widgets}/a/scale"
    scale = await lab.get(path)
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 1})
    answer = await lab.http.put(path, json={**scale, "spec": {"replicas": 4}})
    assert answer.json()["spec"] == {"replicas": 4}
    answer = await lab.http.patch(path, json={"spec": {"replicas": 5}}, headers=MERGE)
    assert answer.json()["kind"] == "Scale"
    assert (await lab.get(f"{lab.widgets}/a"))["spec"]["replicas"] == 5
    status_of(await lab.http.put(path, json={**scale, "spec": {"replicas": 6}}), 409, "Conflict")


# -- deletion ----------------------------------------------------------------------------------------------------------


async def check_deletion_waits_for_finalizers(lab: Lab) -> None:
    """An object with a finalizer is marked, takes no new finalizer, and goes when the last one is removed."""
    await lab.create(lab.widgets, widget("a", metadata={"finalizers": ["check.llmkube.dev/hold"]}))
    path = f"{lab.widgets}/a"
    answer = await lab.http.delete(path)
    assert answer.status_code == 200
    assert answer.json()["metadata"]["deletionTimestamp"]
    patch = {"metadata": {"finalizers": ["check.llmkube.dev/hold", "check.llmkube.dev/more"]}}
    status = status_of(await lab.http.patch(path, json=patch, headers=MERGE), 422, "Invalid")
    assert set(causes_of(status)) == {("FieldValueForbidden", "metadata.finalizers")}
    answer = await lab.http.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE)
    assert answer.status_code == 200
    assert (await lab.http.get(path)).status_code == 404


async def check_deletion_answers_and_preconditions(lab: Lab) -> None:
    """A delete says what went; a precondition that does not hold keeps the object."""
    made = await lab.widget("a")
    path = f"{lab.widgets}/a"
    body = {"preconditions": {"uid": "other"}}
    status_of(await lab.http.request("DELETE", path, json=body), 409, "Conflict")
    body = {"preconditions": {"resourceVersion": "1"}}
    status_of(await lab.http.request("DELETE", path, json=body), 409, "Conflict")
    answer = await lab.http.request("DELETE", path, json={"preconditions": {"uid": made["metadata"]["uid"]}})
    assert answer.json()["status"] == "Success"
    details = {"name": "a", "group": GROUP, "kind": "widgets", "uid": made["metadata"]["uid"]}
    assert answer.json()["details"] == details
    status_of(await lab.http.delete(path), 404, "NotFound")


async def check_collections_are_deleted_by_selector(lab: Lab) -> None:
    """Deleting a collection takes what the selector chooses and nothing else."""
    for name, colour in (("a", "x"), ("b", "y"), ("c", "x")):
        await lab.create(lab.widgets, widget(name, metadata={"labels": {"set": colour}}))
    answer = await lab.http.delete(lab.widgets, params={"labelSelector": "set=x"})
    assert answer.status_code == 200
    assert [item["metadata"]["name"] for item in (await lab.get(lab.widgets))["items"]] == ["b"]


def owned_by(owner: dict[str, Any], *, blocks: bool = False) -> dict[str, Any]:
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"ownerReferences": [{**reference, **({"blockOwnerDeletion": True} if blocks else {})}]}


async def check_dependents_follow_their_owner(lab: Lab) -> None:
    """Background deletion takes dependents and theirs along; orphaning lets them live without the reference."""
    owner = await lab.widget("owner")
    child = await lab.create(lab.core("configmaps"), config_map("child", **owned_by(owner)))
    await lab.create(lab.core("configmaps"), config_map("grandchild", **owned_by(child)))
    await lab.http.delete(f"{lab.widgets}/owner")
    await lab.wait_gone(f"{lab.core('configmaps')}/child")
    await lab.wait_gone(f"{lab.core('configmaps')}/grandchild")
    owner = await lab.widget("owner")
    await lab.create(lab.core("configmaps"), config_map("orphan", **owned_by(owner)))
    await lab.http.request("DELETE", f"{lab.widgets}/owner", json={"propagationPolicy": "Orphan"})
    await lab.wait_gone(f"{lab.widgets}/owner")
    assert "ownerReferences" not in (await lab.get(f"{lab.core('configmaps')}/orphan"))["metadata"]


async def check_foreground_deletion_waits_for_dependents(lab: Lab) -> None:
    """The owner stays, marked, while a dependent that blocks it is held by a finalizer."""
    owner = await lab.widget("owner")
    metadata = {**owned_by(owner, blocks=True), "finalizers": ["check.llmkube.dev/hold"]}
    await lab.create(lab.widgets, widget("child", metadata=metadata))
    answer = await lab.http.request("DELETE", f"{lab.widgets}/owner", json={"propagationPolicy": "Foreground"})
    assert answer.json()["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def marked() -> bool:
        return "deletionTimestamp" in (await lab.get(f"{lab.widgets}/child"))["metadata"]

    await wait_until(marked)
    assert (await lab.http.get(f"{lab.widgets}/owner")).status_code == 200
    await lab.http.patch(f"{lab.widgets}/child", json={"metadata": {"finalizers": None}}, headers=MERGE)
    await lab.wait_gone(f"{lab.widgets}/owner")


async def check_an_absent_owner_is_no_owner(lab: Lab) -> None:
    """An object whose only owner is not there is collected; one with another owner loses the dead reference."""
    owner = await lab.widget("owner")
    dead = {**owner, "metadata": {"name": "ghost", "uid": "00000000-0000-4000-8000-000000000000"}}
    await lab.create(lab.core("configmaps"), config_map("lost", **owned_by(dead)))
    both = {"ownerReferences": [*owned_by(dead)["ownerReferences"], *owned_by(owner)["ownerReferences"]]}
    await lab.create(lab.core("configmaps"), config_map("kept", **both))
    await lab.wait_gone(f"{lab.core('configmaps')}/lost")

    async def trimmed() -> bool:
        kept = await lab.get(f"{lab.core('configmaps')}/kept")
        return bool(kept["metadata"]["ownerReferences"] == owned_by(owner)["ownerReferences"])

    await wait_until(trimmed)


async def check_a_namespace_goes_with_its_content(lab: Lab) -> None:
    """A deleted namespace is emptied first, takes nothing new meanwhile, and then is gone."""
    home = f"{lab.namespace}-inner"
    await lab.create("/api/v1/namespaces", {"metadata": {"name": home}})
    inner = f"{WIDGETS}/namespaces/{home}/widgets"
    await lab.create(inner, widget("a", metadata={"finalizers": ["check.llmkube.dev/hold"]}))
    await lab.create(f"/api/v1/namespaces/{home}/configmaps", config_map("c"))
    answer = await lab.http.delete(f"/api/v1/namespaces/{home}")
    assert answer.status_code == 200
    await lab.wait_gone(f"/api/v1/namespaces/{home}/configmaps/c")
    answer = await lab.http.post(inner, json=widget("b"))
    assert "because it is being terminated" in status_of(answer, 403, "Forbidden")["message"]
    await lab.http.patch(f"{inner}/a", json={"metadata": {"finalizers": None}}, headers=MERGE)
    await lab.wait_gone(f"/api/v1/namespaces/{home}")


# -- lists and watches -------------------------------------------------------------------------------------------------


async def check_lists_select(lab: Lab) -> None:
    """Label selectors of every form and the two field selectors choose what they say."""
    for name, labels in (("a", {"tier": "web", "env": "dev"}), ("b", {"tier": "db"}), ("c", {})):
        await lab.create(lab.widgets, widget(name, metadata={"labels": labels}))

    async def names(**params: str) -> str:
        return "".join(item["metadata"]["name"] for item in (await lab.get(lab.widgets, **params))["items"])

    for selector, expected in (
        ("tier=web", "a"),
        ("tier==web,env=dev", "a"),
        ("tier!=web", "bc"),
        ("tier", "ab"),
        ("!tier", "c"),
        ("tier in (web,db)", "ab"),
        ("tier notin (web)", "bc"),
        ("tier in (web, db),env", "a"),
    ):
        assert await names(labelSelector=selector) == expected, selector
    assert await names(fieldSelector="metadata.name=b") == "b"
    assert await names(fieldSelector="metadata.name!=b") == "ac"
    status_of(await lab.http.get(lab.widgets, params={"fieldSelector": "spec.size=3"}), 400, "BadRequest")
    status_of(await lab.http.get(lab.widgets, params={"labelSelector": "tier in web"}), 400, "BadRequest")


async def check_pages_show_one_moment(lab: Lab) -> None:
    """A list read page by page is the list as it was at its first page."""
    for name in "abcde":
        await lab.widget(name)
    first = await lab.get(lab.widgets, limit=2)
    assert first["metadata"]["remainingItemCount"] == 3
    await lab.http.delete(f"{lab.widgets}/d")
    await lab.widget("cc")
    names = [item["metadata"]["name"] for item in first["items"]]
    page = first
    while token := page["metadata"].get("continue"):
        page = await lab.get(lab.widgets, **{"limit": 2, "continue": token})
        names += [item["metadata"]["name"] for item in page["items"]]
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert names == list("abcde")
    status_of(await lab.http.get(lab.widgets, params={"continue": "nonsense"}), 400, "BadRequest")


async def check_resource_versions_of_reads(lab: Lab) -> None:
    """`Exact` shows the past, `NotOlderThan` at least that, and a version from the future is refused with a retry."""
    await lab.widget("a")
    before = (await lab.get(lab.widgets))["metadata"]["resourceVersion"]
    await lab.widget("b")
    past = await lab.get(lab.widgets, resourceVersion=before, resourceVersionMatch="Exact")
    assert [item["metadata"]["name"] for item in past["items"]] == ["a"]
    fresh = await lab.get(lab.widgets, resourceVersion=before, resourceVersionMatch="NotOlderThan")
    assert [item["metadata"]["name"] for item in fresh["items"]] == ["a", "b"]
    assert len((await lab.get(lab.widgets, resourceVersion="0"))["items"]) == 2


async def check_a_watch_follows_a_list(lab: Lab) -> None:
    """Every change after the list's version comes once, in order, with growing versions."""
    version = (await lab.get(lab.widgets))["metadata"]["resourceVersion"]
    async with lab.watch(lab.widgets, resourceVersion=version) as next_event:
        await lab.widget("a")
        await lab.http.patch(f"{lab.widgets}/a", json={"spec": {"size": 4}}, headers=MERGE)
        await lab.http.delete(f"{lab.widgets}/a")
        events = [await next_event() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert events[-1]["object"]["spec"]["size"] == 4
    async with lab.watch(lab.widgets, resourceVersion=events[0]["object"]["metadata"]["resourceVersion"]) as next_event:
        assert (await next_event())["type"] == "MODIFIED"


async def check_a_watch_without_a_version_begins_with_the_state(lab: Lab) -> None:
    """Without a version the objects that are there come first, as ADDED."""
    await lab.widget("a")
    async with lab.watch(lab.widgets) as next_event:
        event = await next_event()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
        await lab.widget("b")
        assert (await next_event())["object"]["metadata"]["name"] == "b"


async def check_selectors_of_watches_turn_changes_into_comings_and_goings(lab: Lab) -> None:
    """An object that begins to match is ADDED, one that stops is DELETED, others are not mentioned."""
    async with lab.watch(lab.widgets, labelSelector="on=yes", resourceVersion=await version_of(lab)) as next_event:
        await lab.widget("a")
        await lab.http.patch(f"{lab.widgets}/a", json={"metadata": {"labels": {"on": "yes"}}}, headers=MERGE)
        await lab.http.patch(f"{lab.widgets}/a", json={"spec": {"size": 4}}, headers=MERGE)
        await lab.http.patch(f"{lab.widgets}/a", json={"metadata": {"labels": {"on": None}}}, headers=MERGE)
        assert [(await next_event())["type"] for _ in range(3)] == ["ADDED", "MODIFIED", "DELETED"]
    async with lab.watch(lab.widgets, fieldSelector="metadata.name=b", resourceVersion=await version_of(lab)) as events:
        await lab.widget("c")
        await lab.widget("b")
        assert (await events())["object"]["metadata"]["name"] == "b"


async def version_of(lab: Lab) -> str:
    version: str = (await lab.get(lab.widgets))["metadata"]["resourceVersion"]
    return version


async def check_a_watch_ends_when_its_time_is_over(lab: Lab) -> None:
    """`timeoutSeconds` ends the stream cleanly."""
    async with lab.watch(lab.widgets, timeoutSeconds="1", resourceVersion=await version_of(lab)) as next_event:
        while (event := await next_event()) is not None:
            assert event["type"] == "BOOKMARK"


async def check_a_streaming_list_says_where_it_ends(lab: Lab) -> None:
    """`sendInitialEvents` sends the state and then a bookmark that says so."""
    await lab.widget("a")
    params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with lab.watch(lab.widgets, **params) as next_event:
        assert (await next_event())["type"] == "ADDED"
        bookmark = await next_event()
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    answer = await lab.http.get(lab.widgets, params={"watch": "true", "sendInitialEvents": "true"})
    status_of(answer, 422, "Invalid")


async def check_bookmarks_do_not_go_backwards(lab: Lab) -> None:
    """A bookmark is not older than any event before it, and a watch from there misses nothing and repeats nothing."""
    made = await lab.widget("a")
    params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with lab.watch(lab.widgets, **params) as next_event:
        assert (await next_event())["type"] == "ADDED"
        bookmark = await next_event()
    at = bookmark["object"]["metadata"]["resourceVersion"]
    assert int(at) >= int(made["metadata"]["resourceVersion"])
    await lab.widget("b")
    async with lab.watch(lab.widgets, resourceVersion=at) as next_event:
        assert (await next_event())["object"]["metadata"]["name"] == "b"


async def check_every_acknowledged_write_is_read_again(lab: Lab) -> None:
    """What was answered with success is what the next read shows, write after write."""
    await lab.widget("a")
    for size in (1, 2, 3, 4, 5, 6, 7, 8):
        answer = await lab.http.patch(f"{lab.widgets}/a", json={"spec": {"size": size}}, headers=MERGE)
        assert (await lab.get(f"{lab.widgets}/a")) == answer.json()


async def check_a_forgotten_version_is_gone(lab: Lab) -> None:
    """A watch from a version that the server has forgotten ends with 410 Expired, as an ERROR event or a status."""
    params = {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "1"}
    async with lab.http.stream("GET", lab.widgets, params=params) as answer:
        if answer.status_code == 410:
            status = json.loads(await answer.aread())
        else:
            line = await anext(answer.aiter_lines(), "")
            if not line or json.loads(line)["type"] != "ERROR":
                return  # a young server remembers everything
            status = json.loads(line)["object"]
    assert (status["code"], status["reason"]) == (410, "Expired")


# -- what kubectl asks -------------------------------------------------------------------------------------------------


async def check_discovery(lab: Lab) -> None:
    """The kind is in the old discovery, in the aggregated one and in OpenAPI, with its names and subresources."""
    listed = await lab.get(WIDGETS)
    entry = next(item for item in listed["resources"] if item["name"] == "widgets")
    assert (entry["kind"], entry["namespaced"], entry["shortNames"]) == ("Widget", True, ["wd"])
    assert {"get", "list", "watch", "create", "update", "patch", "delete"} <= set(entry["verbs"])
    assert {"widgets/status", "widgets/scale"} <= {item["name"] for item in listed["resources"]}
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    found = (await lab.http.get("/apis", headers={"accept": accept})).json()
    assert found["kind"] == "APIGroupDiscoveryList"
    group = next(item for item in found["items"] if item["metadata"]["name"] == GROUP)
    assert "Widget" in {each["responseKind"]["kind"] for each in group["versions"][0]["resources"]}
    assert (await lab.get("/apis"))["kind"] == "APIGroupList"
    assert (await lab.get("/api"))["versions"] == ["v1"]
    paths = (await lab.get("/openapi/v3"))["paths"]
    document = await lab.get(paths[f"apis/{GROUP}/v1"]["serverRelativeURL"])
    kinds = [
        kind["kind"]
        for schema in document["components"]["schemas"].values()
        for kind in schema.get("x-kubernetes-group-version-kind", [])
    ]
    assert "Widget" in kinds


async def check_tables(lab: Lab) -> None:
    """Asked for a Table, the server draws the kind's columns; asked for metadata, it leaves the rest out."""
    await lab.widget("a")
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    drawn = (await lab.http.get(lab.widgets, headers={"accept": accept})).json()
    assert (drawn["kind"], drawn["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in drawn["columnDefinitions"]] == ["Name", "Size"]
    assert drawn["rows"][0]["cells"] == ["a", 3]
    assert drawn["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
    partial = (await lab.http.get(lab.widgets, headers={"accept": accept})).json()
    assert partial["kind"] == "PartialObjectMetadataList"
    assert "spec" not in partial["items"][0]
    answer = await lab.http.get(lab.widgets, headers={"accept": "image/png"})
    status_of(answer, 406, "NotAcceptable")


async def check_services_have_addresses(lab: Lab) -> None:
    """A Service gets an address that survives updates and recreation of nothing else; a headless one gets none."""
    made = await lab.create(lab.core("services"), {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    address = made["spec"]["clusterIP"]
    assert made["spec"]["clusterIPs"] == [address]
    assert made["spec"]["ports"][0]["targetPort"] == 80
    answer = await lab.http.put(
        f"{lab.core('services')}/s", json={"metadata": {"name": "s"}, "spec": {"ports": [{"port": 81}]}}
    )
    assert answer.json()["spec"]["clusterIP"] == address
    headless = {"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}
    assert (await lab.create(lab.core("services"), headless))["spec"]["clusterIP"] == "None"


async def check_slices_refuse_loopback(lab: Lab) -> None:
    """An EndpointSlice with a loopback address is refused with the address's path."""
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{lab.namespace}/endpointslices"
    manifest = {"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}]}
    status = status_of(await lab.http.post(slices, json=manifest), 422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "endpoints[0].addresses[0]"


CHECKS: tuple[Callable[[Lab], Awaitable[None]], ...] = tuple(
    check for name, check in sorted(globals().items()) if name.startswith("check_")
)
"""Every check of the contract."""


async def install(http: httpx.AsyncClient) -> None:
    """Put the contract's own kind on the server, and wait until it is served."""
    answer = await http.post(CRDS, json=widget_crd())
    assert answer.status_code in {201, 409}, answer.text

    async def served() -> bool:
        return (await http.get(f"{WIDGETS}/widgets")).status_code == 200

    await wait_until(served)


@asynccontextmanager
async def open_lab(http: httpx.AsyncClient) -> AsyncIterator[Lab]:
    """Open a namespace for one check and delete it afterwards."""
    namespace = f"check-{random.SystemRandom().getrandbits(40):010x}"
    lab = Lab(http, namespace)
    await lab.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    yield lab
    await http.delete(f"/api/v1/namespaces/{namespace}")


async def check_api_server(http: httpx.AsyncClient) -> None:
    """Run the whole contract against one server."""
    await install(http)
    for check in CHECKS:
        async with open_lab(http) as lab:
            await check(lab)
