"""Running router: request handler, live config, admin port, metrics and audit log.

router           one router, the state that its requests share, and its readiness
live_config      config that is reloaded while the router runs
default_route    route of `llmkube up`: every service is a backend, without a policy
handler          serves clients: `router.policy` decides where a request goes, `router.dispatch` sends it
shadows          copies of requests to shadow backends
metrics, audit_log  output for the operator
admin            port for the operator
"""
