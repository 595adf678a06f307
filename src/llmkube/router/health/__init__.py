"""Watch the health of backends independently of requests: health checks of a spec, and frozen engines.

health_state  decides from probe results, unanswered checks and /slots; pure
probes        one task for each backend with a healthCheck
engine_watch  checks an engine while requests wait for it, and ends their wait if it is frozen; polls KV cache use
"""
