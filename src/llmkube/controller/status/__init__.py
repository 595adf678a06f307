"""Phase, conditions and numbers of an object, derived from what is there. Pure: one function per kind.

service_status                                    served by hosts, alone or beside pods
pod_service_status                                served by pods
model_status, router_status                       of Models and routers, wherever they are
pods, job_result, supply                          what those are derived from
"""
