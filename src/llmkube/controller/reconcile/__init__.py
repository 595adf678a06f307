"""What is done for one key: read the caches, ask `render` and `status`, let `writes` carry it out.

inference_services, models             the two entry points
pod_services, pod_models               what pods serve, what Jobs fetch
pruning, routers, namespace, idleness  parts of it
"""
