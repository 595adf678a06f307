"""What a router runs by: a value made from a ModelRouter by the program that runs it, read by the router alone. Pure.

routing_config   the value: backends, rules, policy, all names resolved
compile_router   from a ModelRouter, or all that is wrong with it; compile_backend: one destination
written_form     as JSON: versioned, strict
spec_checks      what must hold of each field of a ModelRouter alone
config_checks    what must hold of a config, by hand or made
config_warnings  what may not be meant
model_digest    which engines answer alike
model_patterns   names of models with * and ?
local_address    which URLs can only be in this network
"""
