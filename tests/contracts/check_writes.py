"""Checks of what a write does that the recorded script does not show: what differs from answer to answer."""

from typing import Any

from contracts.lab import MERGE, STRATEGIC, Lab, config_map, status_of, wait_until, widget


async def check_a_created_object_gets_its_identity(lab: Lab) -> None:
    """A new object has a uid, a creation time, generation 1, its defaults, and no field that the schema lacks."""
    made = await lab.create(lab.widgets, widget("a", unknown=1))
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["namespace"] == lab.namespace
    assert made["spec"] == {"size": 3, "colour": "red"}
    assert await lab.get(f"{lab.widgets}/a") == made


async def check_names_are_generated(lab: Lab) -> None:
    """`generateName` gives each object a name of its own with that prefix and five letters."""
    manifest = {**widget(""), "metadata": {"generateName": "job-"}}
    names = [(await lab.create(lab.widgets, manifest))["metadata"]["name"] for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def check_a_write_that_changes_nothing_is_none(lab: Lab) -> None:
    """The same object again keeps its resourceVersion and sends no event."""
    made = await lab.widget("a")
    path = f"{lab.widgets}/a"
    assert (await lab.http.put(path, json=made)).json()["metadata"]["resourceVersion"] == (
        made["metadata"]["resourceVersion"]
    )
    answer = await lab.http.patch(path, json={"spec": {"size": 3}}, headers=MERGE)
    assert answer.json()["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


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


def owned_by(owner: dict[str, Any]) -> dict[str, Any]:
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    return {**reference, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}


async def check_an_absent_owner_is_no_owner(lab: Lab) -> None:
    """An object whose only owner is not there is collected; one with another owner loses the dead reference."""
    owner = await lab.widget("owner")
    dead = {**owner, "metadata": {"name": "ghost", "uid": "00000000-0000-4000-8000-000000000000"}}
    await lab.create(lab.core("configmaps"), config_map("lost", ownerReferences=[owned_by(dead)]))
    await lab.create(lab.core("configmaps"), config_map("kept", ownerReferences=[owned_by(dead), owned_by(owner)]))
    await lab.wait_gone(f"{lab.core('configmaps')}/lost")

    async def trimmed() -> bool:
        kept = await lab.get(f"{lab.core('configmaps')}/kept")
        return bool(kept["metadata"]["ownerReferences"] == [owned_by(owner)])

    await wait_until(trimmed)
