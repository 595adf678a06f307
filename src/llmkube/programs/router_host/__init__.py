"""The ModelRouters of `llmkube up`: each runs in this process, behind the gateway's address.

router_host   follows the objects; one task for each router
hosted_router compiles one, runs it, writes its status
secret_files  the keys that it needs, from Secrets to private files
router_paths  which router a request of the gateway is for
"""
