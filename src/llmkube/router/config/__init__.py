"""What a router runs by: a value made from a ModelRouter by the program that runs it, read by the router alone. Pure.

routing_config   the value: backends, rules, policy, all names resolved
compile_router   from a ModelRouter, or all that is wrong with it; compile_backend: one destination
written_form     as JSON: versioned, strict; what must hold of each field of a ModelRouter alone
config_checks    what must hold of a config, by hand or made; what may not be meant
"""
