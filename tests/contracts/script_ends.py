"""Objects go: with preconditions, finalizers, dependents and namespaces."""

from contracts.lab import config_map
from contracts.nouns import MAPS, SERVICES, WIDGETS, owner, service, widget
from contracts.session import ABSENT_UID, JSON_PATCH, Session
from contracts.widgets import GROUP


async def chapter_deletion(s: Session) -> None:
    path = f"{WIDGETS}/a"
    await s.post(WIDGETS, widget("a"))
    await s.delete(path, {"preconditions": {"uid": "other"}})
    await s.delete(path, {"preconditions": {"resourceVersion": "1"}})
    await s.delete(path, {"preconditions": {"uid": ABSENT_UID, "resourceVersion": "1"}})
    await s.delete(path, {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": f"{{uid:{path}}}"}})
    await s.delete(path)
    await s.delete(path, {"preconditions": {"uid": "other"}})
    await s.post(SERVICES, service("s", ports=[{"port": 80}]))
    await s.delete(f"{SERVICES}/s", {"preconditions": {"uid": ABSENT_UID}})
    await s.delete(f"{SERVICES}/s", {"preconditions": {"resourceVersion": "1"}})
    await s.delete(f"{SERVICES}/s", {"propagationPolicy": "Nonsense"})
    await s.delete(f"{SERVICES}/s", {"propagationPolicy": "Orphan", "orphanDependents": True})
    await s.delete(f"{SERVICES}/s", {"gracePeriodSeconds": 30})
    await s.post(MAPS, config_map("m"))
    await s.delete(f"{MAPS}/m", {"bogus": 1, "gracePeriodSeconds": 0})
    await s.post(MAPS, config_map("m"))
    await s.delete(f"{MAPS}/m", {"kind": "ConfigMap", "apiVersion": "v1"})
    await s.delete(f"{MAPS}/m", [])
    await s.delete(f"{MAPS}/m", propagationPolicy="Background")
    # finalizers
    await s.post(WIDGETS, widget("f", finalizers=["x.dev/a"]))
    path = f"{WIDGETS}/f"
    await s.delete(path, dryRun="All")
    await s.delete(path)
    await s.delete(path)
    await s.patch(path, {"metadata": {"finalizers": ["x.dev/a", "y.dev/b"]}})
    await s.patch(path, {"spec": {"size": 4}})
    await s.patch(path, {"metadata": {"deletionTimestamp": None}})
    await s.post(WIDGETS, widget("f"))
    await s.apply(path, widget("f", {"size": 5}), "x", force="true")
    await s.put(path, widget("f", resourceVersion=f"{{rv:{path}}}"))
    await s.get(path)
    await s.post(WIDGETS, widget("g", finalizers=["x.dev/a"]))
    path = f"{WIDGETS}/g"
    await s.delete(path, {"propagationPolicy": "Background"})
    await s.patch(path, [{"op": "remove", "path": "/metadata/finalizers"}], JSON_PATCH, dryRun="All")
    await s.patch(path, [{"op": "remove", "path": "/metadata/finalizers"}], JSON_PATCH)
    await s.get(path)
    await s.post(MAPS, config_map("h", finalizers=["x.dev/a"]))
    await s.delete(f"{MAPS}/h")
    await s.patch(f"{MAPS}/h", {"metadata": {"finalizers": None}})
    await s.get(f"{MAPS}/h")
    # collections
    for name, colour in (("a", "x"), ("b", "y"), ("c", "x")):
        await s.post(WIDGETS, widget(name, labels={"set": colour}))
    await s.delete(WIDGETS, labelSelector="set=x")
    await s.get(WIDGETS)
    await s.delete(WIDGETS, labelSelector="a in b")
    await s.delete(WIDGETS, fieldSelector="metadata.name=b")
    await s.delete(f"/apis/{GROUP}/v1/widgets")
    await s.get(WIDGETS)


async def chapter_cascades(s: Session) -> None:
    await s.post(WIDGETS, widget("owner"))
    await s.post(MAPS, config_map("child", ownerReferences=owner(WIDGETS, "owner")))
    await s.post(MAPS, config_map("grand", ownerReferences=owner(MAPS, "child", version="v1", kind="ConfigMap")))
    await s.delete(f"{WIDGETS}/owner")
    await s.wait_gone(f"{MAPS}/child")
    await s.wait_gone(f"{MAPS}/grand")
    await s.post(WIDGETS, widget("owner"))
    await s.post(MAPS, config_map("orphan", ownerReferences=owner(WIDGETS, "owner")))
    absent = [{"apiVersion": f"{GROUP}/v1", "kind": "Widget", "name": "gone", "uid": ABSENT_UID}]
    await s.wait_collector(MAPS, config_map("last", ownerReferences=absent))
    await s.delete(f"{WIDGETS}/owner", {"propagationPolicy": "Orphan"})
    await s.wait_gone(f"{WIDGETS}/owner")
    await s.get(f"{MAPS}/orphan")
    await s.post(WIDGETS, widget("owner"))
    blocking = owner(WIDGETS, "owner", blockOwnerDeletion=True)
    await s.post(WIDGETS, widget("child", finalizers=["x.dev/hold"], ownerReferences=blocking))
    await s.delete(f"{WIDGETS}/owner", {"propagationPolicy": "Foreground"})
    await s.wait_until(f"{WIDGETS}/child", "deletionTimestamp")
    await s.get(f"{WIDGETS}/owner")
    await s.get(f"{WIDGETS}/child")
    await s.patch(f"{WIDGETS}/child", {"metadata": {"finalizers": None}})
    await s.wait_gone(f"{WIDGETS}/owner")
    await s.post(WIDGETS, widget("one"))
    await s.post(WIDGETS, widget("two"))
    await s.post(MAPS, config_map("shared", ownerReferences=[*owner(WIDGETS, "one"), *owner(WIDGETS, "two")]))
    await s.delete(f"{WIDGETS}/one")
    await s.delete(f"{WIDGETS}/two")
    await s.wait_gone(f"{MAPS}/shared")
    await s.post(WIDGETS, widget("lonely", ownerReferences=absent))
    await s.wait_gone(f"{WIDGETS}/lonely")


async def chapter_namespaces(s: Session) -> None:
    home = "/api/v1/namespaces/{ns}-x"
    await s.post("/api/v1/namespaces", {"metadata": {"name": "{ns}-x", "labels": {"a": "b"}}})
    await s.get(home)
    await s.post("/api/v1/namespaces", {"metadata": {"name": "{ns}-x"}})
    await s.post("/api/v1/namespaces", {"metadata": {"name": "Not.A.Label"}})
    await s.patch(home, {"metadata": {"labels": {"kubernetes.io/metadata.name": None}}})
    await s.patch(home, {"spec": {"finalizers": []}})
    await s.patch(home, {"status": {"phase": "Terminating"}})
    await s.post(f"{home}/configmaps", config_map("held", finalizers=["x.dev/hold"]))
    await s.delete(home)
    await s.post(f"{home}/configmaps", config_map("late"))
    await s.apply(f"{home}/configmaps/late", config_map("late"), "x")
    await s.wait_until(f"{home}/configmaps/held", "deletionTimestamp")
    await s.patch(f"{home}/configmaps/held", {"metadata": {"finalizers": None}})
    await s.wait_gone(home)
    await s.delete("/api/v1/namespaces/no-such-home")
    await s.delete("/api/v1/namespaces")
    await s.delete("/api/v1/namespaces/default", dryRun="All")
    await s.post("/api/v1/namespaces/no-such-home/configmaps", config_map("m"))
