"""What clients and operators of a router meet: its listener, its handler, its config, what it writes and counts.

router           one router, with all that its requests share, and whether it can answer
live_config      its config, which may change while it runs
default_route    that of `llmkube up`: every service is a backend, without a policy
handler          answers clients: what they ask is decided on by `router.policy`, and carried out by `router.dispatch`
shadows          copies to backends that are tried out
metrics, genai_metrics, audit_log  what the operator reads; admin: who may
"""
