"""Objects in, manifests out: pure functions, the same bytes for the same objects.

    manifests                     everything that one service owns
    workload, pod, storage, jobs  Deployments, pods, volumes, download Jobs
    routing, scaling, monitoring  HTTPRoutes, autoscalers, PodMonitors
No cluster is read here: what depends on one comes in as an argument.
"""
