"""The ModelRouters of `llmkube up`: each runs in this process, behind the gateway's address.

router_host   where the controller's reconciler places routers; one task for each
hosted_router compiles one, and runs it
secret_files  the keys that it needs, from Secrets to private files
router_paths  which router a request of the gateway is for
"""
