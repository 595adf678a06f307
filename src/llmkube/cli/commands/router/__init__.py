"""Commands about routers: which way a request takes.

command       the group; `explain`: which rule decides, which backends are tried, why not the others
routing_file  what both are given
serve         runs one
"""
