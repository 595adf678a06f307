"""Services, EndpointSlices and classic Endpoints: what they refuse and how they are completed."""

from contracts.nouns import ENDPOINTS, SERVICES, SLICES, service, slice_of
from contracts.session import Session


async def chapter_endpoints(s: Session) -> None:
    for index, made in enumerate(
        (
            ("IPv4", "127.0.0.1"),
            ("IPv4", "169.254.1.1"),
            ("IPv4", "0.0.0.0"),
            ("IPv4", "224.0.0.1"),
            ("IPv4", "192.0.2.5"),
            ("IPv4", "192.0.2.5", "192.0.2.5"),
            ("IPv4", "2001:db8::5"),
            ("IPv4", "010.0.0.1"),
            ("IPv4", "x"),
            ("IPv4", ""),
            ("IPv6", "::1"),
            ("IPv6", "fe80::1"),
            ("IPv6", "::"),
            ("IPv6", "ff02::1"),
            ("IPv6", "2001:db8::5"),
            ("IPv6", "2001:DB8:0:0::5"),
            ("IPv6", "::ffff:192.0.2.5"),
            ("IPv6", "192.0.2.5"),
            ("IPv6", "fe80::1%eth0"),
            ("FQDN", "example.org"),
            ("FQDN", "not a name"),
            ("", "192.0.2.5"),
            ("IPv5", "192.0.2.5"),
            ("IPv4",),
            ("IPv6", "::ffff:127.0.0.1"),
            ("IPv4", 5),
            ("IPv6", "127.0.0.1", "010.1.1.1", "0.0.0.0", "192.0.2.1"),
            ("IPv4", "::1", "FE80::1", "::ffff:1.2.3.4", "x"),
            ("IPv6", "FE80::1", "0::1", "::"),
        )
    ):
        await s.post(SLICES, slice_of(f"s{index}", *made))
    for index, ports in enumerate(
        (
            [{"port": 80}],
            [{"port": 0}],
            [{"port": 65536}],
            [{"port": "80"}],
            [{"name": "A_b", "port": 1}],
            [{"protocol": "X"}],
            [{}],
            [{"name": "a", "port": 1}, {"name": "a", "port": 2}],
            [{"port": 1, "appProtocol": "http"}],
            [{"port": 1, "appProtocol": "a b"}],
            None,
            [],
            [{"name": "x" * 64}],
        )
    ):
        await s.post(SLICES, slice_of(f"p{index}", "IPv4", "192.0.2.1", ports=ports))
    for index, endpoint in enumerate(
        (
            {"addresses": []},
            {"addresses": None},
            {},
            {"addresses": ["192.0.2.1"], "conditions": {"ready": True}},
            {"addresses": ["192.0.2.1"], "hostname": "a.b"},
            {"addresses": ["192.0.2.1"], "nodeName": "a b"},
            {"addresses": ["192.0.2.1"], "conditions": {"ready": "x"}},
            {"addresses": ["192.0.2.1"], "bogus": 1},
            {
                "addresses": ["192.0.2.1"],
                "zone": "z",
                "targetRef": {"kind": "Pod", "name": "p"},
                "deprecatedTopology": {"a": "b"},
            },
        )
    ):
        await s.post(SLICES, {**slice_of(f"e{index}", "IPv4"), "endpoints": [endpoint]})
    await s.post(SLICES, {**slice_of("n", "IPv4"), "endpoints": None})
    await s.get(f"{SLICES}/s4")
    await s.patch(f"{SLICES}/s4", {"addressType": "IPv6"})
    await s.patch(f"{SLICES}/s4", {"addressType": "IPv6", "endpoints": [{"addresses": ["2001:db8::5"]}]})
    await s.patch(f"{SLICES}/s4", {"endpoints": [{"addresses": ["192.0.2.6"]}]})
    await s.patch(f"{SLICES}/s4", {"metadata": {"labels": {"a": "b"}}})
    await s.patch(f"{SLICES}/s4", {"metadata": {"annotations": {"a": "b"}}})
    await s.patch(f"{SLICES}/s4", {"endpoints": []})
    await s.apply(f"{SLICES}/s4", slice_of("s4", "IPv4", "192.0.2.7", ports=[{"port": 80, "name": "a"}]), "agent")
    await s.apply(f"{SLICES}/s4", slice_of("s4", "IPv4", "192.0.2.7", ports=[]), "agent")
    await s.apply(f"{SLICES}/s4", slice_of("s4", "IPv4", ports=[]), "agent", force="true")
    for index, subset in enumerate(
        (
            {"addresses": [{"ip": "127.0.0.1"}]},
            {"addresses": [{"ip": "x"}]},
            {"addresses": [{}]},
            {},
            {"addresses": []},
            {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}, {"port": 2}]},
            {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 0}]},
            {"notReadyAddresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1, "protocol": "X"}]},
            {"addresses": [{"ip": "192.0.2.2"}, {"ip": "192.0.2.1"}], "ports": [{"port": 1}]},
            {"addresses": [{"ip": "2001:DB8:0:0::5"}]},
            {"addresses": [{"ip": "::ffff:192.0.2.5"}]},
        )
    ):
        await s.post(ENDPOINTS, {"metadata": {"name": f"e{index}"}, "subsets": [subset]})
    await s.post(ENDPOINTS, {"metadata": {"name": "none"}, "subsets": []})
    await s.post(ENDPOINTS, {"metadata": {"name": "null"}, "subsets": None})
    await s.apply(
        f"{ENDPOINTS}/none", {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "none"}, "subsets": []}, "x"
    )


async def chapter_services(s: Session) -> None:
    web = [{"port": 80}]
    for index, spec in enumerate(
        (
            {"ports": web},
            {"ports": web, "clusterIP": "None"},
            {"clusterIP": "None"},
            {},
            {"ports": []},
            {"ports": [{"port": 0}]},
            {"ports": [{"port": 65536}]},
            {"ports": [{"port": 80}, {"port": 81}]},
            {"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]},
            {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]},
            {"ports": [{"port": 80, "targetPort": "http"}]},
            {"ports": [{"port": 80, "targetPort": 0}]},
            {"ports": [{"port": 80, "targetPort": "Not_A_Name"}]},
            {"ports": [{"port": 80, "protocol": "X"}]},
            {"ports": [{"port": "80"}]},
            {"ports": web, "type": "Nonsense"},
            {"ports": web, "type": "ExternalName"},
            {"type": "ExternalName", "externalName": "a b"},
            {"type": "ExternalName", "externalName": "example.org"},
            {"ports": web, "selector": {"a": "b c"}},
            {"ports": web, "sessionAffinity": "ClientIP"},
            {"ports": web, "sessionAffinity": "X"},
            {"ports": web, "externalIPs": ["127.0.0.1"]},
            {"ports": web, "clusterIP": "x"},
            {"ports": web, "publishNotReadyAddresses": True},
            {"ports": web, "internalTrafficPolicy": "X"},
            {"ports": web, "bogus": 1},
            {"ports": [{}, {}]},
            {"ports": web, "externalIPs": ["198.51.100.1"]},
            {"ports": web, "externalIPs": ["198.51.100.1"], "externalTrafficPolicy": "Local"},
            {"ports": web, "externalIPs": ["198.51.100.1"], "externalTrafficPolicy": "X"},
            {"ports": web, "externalIPs": ["2001:DB8::1"]},
            {"ports": web, "externalIPs": ["010.1.1.1", "::ffff:1.2.3.4", "x"]},
            {"ports": web, "externalIPs": ["198.51.100.1"], "clusterIP": "None"},
            {"ports": web, "externalIPs": ["198.51.100.1"], "type": "ExternalName", "externalName": "example.org"},
            {"ports": web, "externalTrafficPolicy": "Cluster"},
            {"ports": web, "loadBalancerIP": "192.0.2.1", "sessionAffinity": "ClientIP", "clusterIP": "None"},
            {"ports": web, "trafficDistribution": "PreferClose"},
            {"ports": web, "ipFamilies": ["IPv6"]},
            {"ports": web, "ipFamilies": ["IPv4", "IPv6"]},
            {"ports": web, "ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "PreferDualStack"},
            {"ports": web, "ipFamilies": ["IPv5"]},
            {"ports": web, "ipFamilyPolicy": "X"},
            {"ports": web, "ipFamilyPolicy": "PreferDualStack"},
            {"ports": web, "ipFamilyPolicy": "RequireDualStack"},
            {"ports": web, "clusterIP": "2001:db8::1"},
            {"ports": web, "clusterIP": "None", "selector": {"a": "b"}},
            {"ports": web, "clusterIP": "None", "selector": {"a": "b"}, "ipFamilyPolicy": "RequireDualStack"},
            {"ports": web, "clusterIP": "None", "ipFamilies": ["IPv6"]},
            {"ports": web, "clusterIP": "None", "ipFamilyPolicy": "PreferDualStack"},
            {"ports": web, "clusterIP": "None", "ipFamilyPolicy": "SingleStack"},
        )
    ):
        await s.post(SERVICES, service(f"s{index}", **spec))
    await s.put(f"{SERVICES}/s0", service("s0", ports=[{"port": 81}]))
    await s.patch(f"{SERVICES}/s0", {"spec": {"clusterIP": "None"}})
    await s.patch(f"{SERVICES}/s0", {"spec": {"selector": {"a": "b"}}})
    await s.patch(f"{SERVICES}/s0", {"spec": {"ports": None}})
    await s.patch(f"{SERVICES}/s0/status", {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})
    await s.delete(f"{SERVICES}/s0")
    path = f"{SERVICES}/out"
    await s.post(SERVICES, service("out", ports=web, externalIPs=["198.51.100.1"]))
    await s.post(SERVICES, service("out", ports=web, externalIPs=["198.51.100.1"]))
    await s.patch(path, {"metadata": {"labels": {"a": "b"}}})
    await s.patch(path, {"metadata": {"labels": {"a": "b"}}})
    await s.patch(f"{path}/status", {"metadata": {"labels": {"a": "c"}}})
    await s.patch(path, {"spec": {"externalIPs": None, "externalTrafficPolicy": "Local"}})
    await s.patch(path, {"spec": {"type": "ExternalName", "externalName": "example.org"}}, dryRun="All")
    await s.patch(path, {"spec": {"externalIPs": None}})
    path = f"{SERVICES}/bare"
    await s.post(SERVICES, service("bare", ports=web, clusterIP="None"))
    await s.patch(path, {"spec": {"selector": {"a": "b"}}})
    for more in (
        {"clusterIP": "None"},
        {"clusterIP": "None", "selector": {"a": "b"}},
        {"selector": {"a": "b"}},
        {"clusterIP": "None", "selector": {"a": "b"}, "ipFamilies": ["IPv4"]},
        {"clusterIP": "None", "selector": {"a": "b"}, "ipFamilyPolicy": "PreferDualStack"},
        {"clusterIP": "None", "selector": {"a": "b"}, "ipFamilyPolicy": "SingleStack"},
        {"clusterIP": "None", "ipFamilyPolicy": "SingleStack"},
        {"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack"},
    ):
        await s.put(path, service("bare", ports=web, **more), dryRun="All")
    await s.patch(path, {"spec": {"selector": {"a": "b"}, "ipFamilyPolicy": "SingleStack"}})
    await s.patch(path, {"spec": {"selector": None}})
    await s.put(path, service("bare", ports=web, clusterIP="None", selector={"a": "c"}))
