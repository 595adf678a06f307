"""Reconcile one key: read the caches, call `render` and `status`, and write the result with `writes`.

inference_services, models, routers    the entry points
gpu_quotas, model_pools                which services may use GPUs, and which take turns
workload_plans, rollout_gate           the plan of a service's pods, and when they are replaced
context                                shared state
pruning, namespace                     background tasks
pod_polling                            queries to pods over HTTP
"""
