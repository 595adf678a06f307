"""Render manifests from objects: the same bytes for the same objects. Pure.

    manifests                     all objects of a service: Deployment, Service, autoscaler, budget, HTTPRoute,
                                  PodMonitor, objective
    router_objects                all objects of a router, with the network policy of its pods
    pod, storage, jobs            pods, volumes, download Jobs
    drain                         our containers next to an engine: key proxy, and drain before termination
    pod_policy                    pod settings that need the operator's permission
Nothing here reads a cluster: everything that depends on one is an argument.
"""
