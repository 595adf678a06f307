"""Phase, conditions and numbers of an object, derived from what is there. Pure: one function per kind.

service_status, model_status                      served by hosts
pod_service_status, pod_model_status              served by pods, fetched by Jobs
pods, job_result, rollout, supply                 what those are derived from
"""
