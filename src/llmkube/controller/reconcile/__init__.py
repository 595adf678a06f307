"""What is done for one key: read the caches, ask `render` and `status`, let `writes` carry it out.

inference_services, models, routers    the entry points
workload_plans, rollout_gate           what pods are, and when they are replaced
context                                what these share
pruning, namespace                     tasks beside them
pod_answers                            what pods say when they are asked over HTTP
"""
