"""Checks of what a write does: created objects, and changed ones."""

import json
from typing import Any

import httpx

from contracts.lab import (
    APPLY,
    JSON_PATCH,
    MERGE,
    NOT_CHECKED,
    STRATEGIC,
    Lab,
    causes_of,
    config_map,
    status_of,
    widget,
)
from contracts.widgets import GROUP, WIDGETS


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


async def check_a_new_item_is_taken_as_it_is(lab: Lab) -> None:
    """In an item that a strategic patch adds, a directive is an unknown field; in one that it changes, it is obeyed."""
    path = f"{lab.core('services')}/s"
    spec = {"clusterIP": "None", "ports": [{"name": "a", "port": 80, "appProtocol": "x"}]}
    await lab.create(lab.core("services"), {"metadata": {"name": "s"}, "spec": spec})
    item = {"name": "b", "port": 81, "appProtocol": None, "$retainKeys": ["name"]}
    patch = {"spec": {"ports": [item]}}
    answer = await lab.http.patch(path, json=patch, headers=STRATEGIC, params={"fieldValidation": "Strict"})
    assert 'unknown field "spec.ports[0].$retainKeys"' in status_of(answer, 422, "Invalid")["message"]
    answer = await lab.http.patch(path, json=patch, headers=STRATEGIC)
    assert 'unknown field "spec.ports[0].$retainKeys"' in answer.headers["warning"].replace("\\", "")
    assert answer.json()["spec"]["ports"][0] == {"name": "b", "port": 81, "protocol": "TCP", "targetPort": 81}
    item = {"name": "aa", "port": 80, "targetPort": None, "$retainKeys": ["name", "port"]}
    answer = await lab.http.patch(path, json={"spec": {"ports": [item]}}, headers=STRATEGIC)
    assert answer.status_code == 200, answer.text
    assert {"name": "aa", "port": 80, "protocol": "TCP", "targetPort": 80} in answer.json()["spec"]["ports"]


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
