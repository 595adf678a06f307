"""Checks of how objects go: finalizers, owners, namespaces, definitions."""

from typing import Any

from contracts.lab import (
    MERGE,
    Lab,
    causes_of,
    config_map,
    status_of,
    wait_until,
    widget,
)
from contracts.widgets import GROUP, WIDGETS


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
