"""Commands of the router: run one, explain its decisions, and manage its clients' keys.

command       the group, and `explain`
routing_file  the file with a ModelRouter or a compiled config
serve         runs a router
cost          `llmkube cost`: tokens, joules and dollars, from metrics
keys          `llmkube keys`: issues, lists and revokes the keys of clients
"""
