"""Objects in, manifests out: pure functions, the same bytes for the same objects. Pure.

    manifests                     everything that one service owns, its Deployment first
    pod, storage, jobs            pods, volumes, download Jobs
    key_check                     what asks an engine's clients for their keys
    drain                         how a pod ends without cutting an answer
    pod_policy                    what an editor may ask of pods, and what the operator has to allow
    routing, scaling, monitoring  HTTPRoutes, autoscalers, PodMonitors
No cluster is read here: what depends on one comes in as an argument.
"""
