"""Commands about routers: which way a request takes, whether a log of decisions is whole.

command       `llmkube router`: one alone, and the group
serve         runs one
explain       which rule decides, which backends are tried, why not the others
verify        the receipts of an audit log
routing_file  a ModelRouter, or what one was compiled to, from a file
"""
