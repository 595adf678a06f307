"""Run the ModelRouters of `llmkube up` in this process, below the gateway's address.

router_host   compiles and runs the routers that the controller's reconciler places, one task for each
secret_files  copies its keys from Secrets to private files
router_paths  dispatches the gateway's requests to routers by path
"""
