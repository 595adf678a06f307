"""Derive the status of an object from the observed state. Pure: one function per kind.

service_status                                    services on hosts, alone or in addition to pods
pod_service_status                                services in pods
model_status, router_status                       Models and routers, on hosts and in pods
gpu_quota, model_pool                             which services may use GPUs, and which take turns
pods, job_result, supply                          inputs of these
"""
