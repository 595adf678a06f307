"""The ModelRouters of `llmkube up`: each runs in this process, behind the gateway's address.

router_host   where the controller's reconciler places routers: compiles and runs one per task; whose a request is
secret_files  the keys that it needs, from Secrets to private files
"""
