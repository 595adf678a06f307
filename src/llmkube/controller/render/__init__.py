"""Objects in, manifests out: pure functions, the same bytes for the same objects. Pure.

    manifests                     everything that one service owns: Deployment, Service, autoscaler, budget, HTTPRoute,
                                  PodMonitor, objective
    router_objects                everything that one router owns, with what its pods may reach
    pod, storage, jobs            pods, volumes, download Jobs
    drain                         containers of ours beside an engine: for clients' keys, and for an end without a cut
    pod_policy                    what an editor may ask of pods, and what the operator has to allow
No cluster is read here: what depends on one comes in as an argument.
"""
