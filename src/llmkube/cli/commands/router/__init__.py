"""Commands about routers: which way a request takes, whether a log of decisions is whole.

command       `llmkube router`: one alone, and the group
serve         runs one, or the parent of several workers
worker_processes
              starts workers, starts them again, ends them
worker        the program of a worker
run_by        what all of these run by
explain       which rule decides, which backends are tried, why not the others
verify        the receipts of an audit log
routing_file  a ModelRouter, or what one was compiled to, from a file
"""
