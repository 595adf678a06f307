"""Commands about routers: which way a request takes.

command       `llmkube router`: one alone, and the group
serve         runs one
explain       which rule decides, which backends are tried, why not the others
routing_file  a ModelRouter, or what one was compiled to, from a file
"""
