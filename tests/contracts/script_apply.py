"""Server-side apply: who owns what, who may take it, and what is refused."""

import json
from typing import Any

from contracts.lab import config_map
from contracts.nouns import GADGETS, MAPS, NOWHERE, SERVICES, WIDGETS, gadget, service, widget
from contracts.session import ABSENT_UID, APPLY, Operation, Session
from contracts.widgets import GROUP


async def chapter_apply(s: Session) -> None:
    path = f"{WIDGETS}/a"

    async def apply(manager: str, spec: Any, **params: str) -> Any:
        return await s.apply(path, widget("a", spec), manager, **params)

    await apply("one", {"size": 3, "replicas": 1})
    await apply("two", {"replicas": 2})
    await apply("two", {"replicas": 1})
    await apply("two", {"replicas": 2}, force="true")
    await apply("one", {"size": 3})
    await apply("one", {"size": 3})
    await apply("two", {})
    await apply("one", {"size": 4, "parts": [{"name": "a", "weight": 1}, {"name": "b"}]})
    await apply("two", {"size": 5, "parts": [{"name": "b", "weight": 2}, {"name": "c"}]})
    await apply("two", {"size": 5, "parts": [{"name": "b", "weight": 2}, {"name": "a", "weight": 9}]})
    await apply("two", {"parts": [{"name": "c"}, {"name": "b", "weight": 2}]})
    await apply("one", {"size": 4, "parts": [{"name": "a", "weight": 1}]})
    await apply("one", {})
    await apply("two", {"bogus": 1})
    await apply("two", {"bogus": 1}, fieldValidation="Ignore")
    await apply("two", {"bogus": 1}, fieldValidation="Strict")
    await apply("two", {"size": "3"})
    await apply("two", {"size": True})
    await apply("two", {"size": [3]})
    await apply("two", {"size": {"a": 1}})
    await apply("two", {"colour": 3})
    await apply("two", {"colour": 3.5})
    await apply("two", {"colour": False})
    await apply("two", {"colour": [1, "a", None]})
    await apply("two", {"colour": {"a": {"b": 'x"y'}}})
    await apply("two", {"parts": {"b": 1, "a": ["x", None]}})
    await apply("two", {"parts": 3.5})
    await apply("two", {"parts": [3]})
    await apply("two", [1])
    await s.apply(path, {**widget("a"), "metadata": {"name": "a", "labels": "x"}}, "two")
    await apply("two", {"parts": [{"weight": 1}]})
    await apply("two", {"parts": [{"name": "a"}, {"name": "a"}]})
    await apply("two", {"parts": [{"name": "a", "bogus": 1}]})
    await apply("two", {"size": 99}, force="true")
    await apply("two", {"size": None}, force="true")
    await apply("two", None)
    await apply("two", {"size": 4}, dryRun="All")
    await apply("", {"size": 4})
    await apply("x" * 129, {"size": 4})
    await apply("tab\there", {"size": 4})
    await s.apply(path, widget("b"), "two")
    await s.apply(path, widget("b", {}), "two")
    await s.apply(path, widget("a", {}, namespace="elsewhere"), "two")
    await s.apply(path, {"spec": {"size": 4}}, "two")
    await s.apply(path, {**widget("a"), "kind": "Gadget"}, "two")
    await s.apply(path, {**widget("a"), "apiVersion": "v1"}, "two")
    await s.apply(path, {**widget("a"), "apiVersion": f"{GROUP}/v9"}, "two")
    await s.apply(path, widget("a", namespace="elsewhere"), "two")
    await s.apply(path, widget("a", {}, uid=ABSENT_UID), "two")
    await s.apply(path, widget("a", {}, resourceVersion="1"), "two")
    await s.apply(path, widget("a", {}, resourceVersion=f"{{rv:{path}}}"), "two")
    await s.apply(path, widget("a", {}, managedFields=[]), "two")
    await s.apply(path, widget("a", {}, managedFields=[{"manager": "x"}]), "two")
    await s.apply(path, widget("a", {}, creationTimestamp="2001-01-01T00:00:00Z", labels={"by": "two"}), "two")
    await s.apply(path, widget("a", {}, generation=9, labels={"by": "two"}), "two")
    await s.apply(f"{WIDGETS}/new", widget("new", uid=ABSENT_UID), "two")
    await s.apply(f"{WIDGETS}/new", widget("new", resourceVersion="1"), "two")
    await s.apply(f"{WIDGETS}/new", widget("new", {}), "two")
    await s.apply(f"{NOWHERE}/new", widget("new"), "two")
    await s.apply(WIDGETS, widget("new"), "two")
    await s.patch(path, {"spec": {"size": 7}}, fieldManager="hand")
    await s.patch(path, {"metadata": {"labels": {"by": "hand"}}}, fieldManager="hand")
    await apply("one", {"size": 8})
    await apply("one", {"size": 7})
    await s.patch(path, {"spec": {"size": 9}}, force="true")
    await s.put(path, widget("a", {"size": 2}, resourceVersion=f"{{rv:{path}}}"), fieldManager="put")
    await apply("one", {"size": 7, "colour": "blue", "replicas": 3})
    await s.get(path)
    await s.send(Operation("PATCH", path, content_type=APPLY, raw=b"", params={"fieldManager": "y"}))
    await s.send(Operation("PATCH", path, content_type=APPLY, raw=b"[1", params={"fieldManager": "y"}))
    yaml = f"apiVersion: {GROUP}/v1\nkind: Widget\nmetadata:\n  name: a\n  labels: {{yaml: 'yes'}}\n"
    await s.send(Operation("PATCH", path, content_type=APPLY, raw=yaml.encode(), params={"fieldManager": "y"}))
    # a built-in kind
    path = f"{SERVICES}/s"
    await s.apply(path, service("s", ports=[{"port": 80, "name": "web"}], selector={"a": "b"}), "one")
    await s.apply(path, service("s", ports=[{"port": 80, "name": "www"}]), "two")
    await s.apply(path, service("s", ports=[{"port": 81, "name": "alt"}]), "two")
    await s.apply(path, service("s", ports=[{"port": 80, "protocol": "UDP", "name": "dns"}]), "two")
    await s.apply(path, service("s", selector={"a": "b"}), "one")
    await s.apply(path, service("s", bogus=1), "one")
    await s.apply(path, service("s", ports=[{"name": "x"}]), "one")
    await s.apply(path, service("s", ports="x"), "one")
    await s.apply(path, service("s", ports=[{"port": "80"}]), "one")
    await s.get(path)
    path = f"{MAPS}/m"
    await s.apply(path, config_map("m", {"a": "1"}), "one")
    await s.apply(path, config_map("m", {"a": "2", "b": "3"}), "two")
    await s.apply(path, config_map("m", {"b": "3"}), "two")
    await s.apply(path, config_map("m", {}), "one")
    await s.apply(path, config_map("m", {"a": 1}), "one")


async def chapter_kubectl_apply(s: Session) -> None:
    """Annotations of a client-side `kubectl apply` do not impede `kubectl apply --server-side`."""
    path = f"{MAPS}/m"

    def last(data: Any, **more: Any) -> dict[str, str]:
        manifest = {**config_map("m", data), **more}
        return {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(manifest), "note": "kept"}

    csa = "kubectl-client-side-apply"
    await s.post(MAPS, config_map("m", {"a": "1", "b": "1"}, annotations=last({"a": "1", "b": "1"})), fieldManager=csa)
    await s.apply(path, config_map("m", {"a": "2"}), "other")
    await s.apply(path, config_map("m", {"a": "2", "b": "<&>"}), "kubectl", dryRun="All")
    await s.patch(path, {"data": {"b": "edited"}}, fieldManager="hand")
    await s.apply(path, config_map("m", {"a": "2", "b": "2"}), "kubectl")
    await s.apply(path, config_map("m", {"a": "2"}), "kubectl")
    await s.apply(path, config_map("m", {"a": "2"}), "kubectl")
    await s.apply(path, config_map("m", {"a": "2"}, annotations={"note": "mine"}), "kubectl", force="true")
    await s.patch(path, {"metadata": {"annotations": last({"a": "3"}, apiVersion="v2")}}, fieldManager="hand")
    await s.patch(path, {"data": {"a": "3"}}, fieldManager="hand")
    await s.apply(path, config_map("m", {"a": "4"}), "kubectl")
    for stored in ("{", "", "[]", "{}"):
        annotation = {"kubectl.kubernetes.io/last-applied-configuration": stored}
        await s.patch(path, {"metadata": {"annotations": annotation}}, fieldManager="hand")
        await s.apply(path, config_map("m", {"a": "4"}), "kubectl")
    await s.apply(path, config_map("m", {"a": "x" * 262_144}), "kubectl", force="true")
    path = f"{WIDGETS}/a"
    parts = {"size": 3, "parts": [{"name": "a", "weight": 1}, {"name": "b"}]}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(widget("a", parts))}
    await s.post(WIDGETS, widget("a", parts, annotations=annotations), fieldManager=csa)
    await s.apply(path, widget("a", {"size": 4, "parts": [{"name": "a", "weight": 2}]}), "kubectl")
    await s.apply(path, widget("a", {"size": 4, "colour": "blue"}), "kubectl")
    await s.get(path)


async def chapter_apply_less(s: Session) -> None:
    """A container from which an apply removes everything becomes null, which a kind may refuse."""
    for name, *specs in (
        ("free", {"anything": {"a": 1}}, {"anything": {}}, {}),
        ("deep", {"anything": {"a": {"b": {"c": 1}}}}, {"anything": {"a": {"b": {}}}}, {"anything": {"a": {}}}),
        ("some", {"anything": {"a": 1, "b": 2}}, {"anything": {"a": 1}}),
        ("map", {"map": {"a": 1}}, {"map": {}}),
        ("defaulted", {"nested": {"deep": {"y": "q"}}}, {"nested": {"deep": {}}}, {"nested": {}}),
        ("listed", {"items": [{"key": "a"}], "tags": ["a"]}, {"items": [], "tags": []}),
        ("row", {"anything": {"a": [1]}}, {"anything": {"a": []}}),
        ("never full", {"anything": {}}, {"anything": {}}, {}),
    ):
        path = f"{GADGETS}/{name.replace(' ', '-')}"
        for spec in specs:
            await s.apply(path, gadget(name.replace(" ", "-"), spec), "one")
        await s.get(path)
    path = f"{GADGETS}/two"
    await s.apply(path, gadget("two", {"anything": {"a": 1}}), "one")
    await s.apply(path, gadget("two", {"anything": {}}), "other")
    await s.apply(path, gadget("two", {"anything": {}}), "one")
    await s.apply(path, gadget("two", {}), "one")
    await s.get(path)
