"""The config of a router: compiled from a ModelRouter by the program that runs the router, read by the router. Pure.

routing_config   the config: backends, rules, policy, with all names resolved
compile_router   compiles a ModelRouter, or reports every error in it; compile_backend: one backend
config_json      the config as JSON, versioned and strict; checks of single fields of a ModelRouter
config_checks    errors and warnings of a config, compiled or handwritten
data_classes     data classes named in a header or a spec
"""
