"""Commands of the router: run one, and explain its decisions.

command       the group, and `explain`
routing_file  the file with a ModelRouter or a compiled config
serve         runs a router
"""
