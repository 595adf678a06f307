"""What is done for one key: read the caches, ask `render` and `status`, let `writes` carry it out.

inference_services, models             the two entry points
pod_services, pod_models               what pods serve, what Jobs fetch
pruning, routers, namespace            parts of it
pod_answers                            what pods say when they are asked over HTTP
"""
