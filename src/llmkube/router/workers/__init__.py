"""A router of several processes at one port: the parent holds what they share, and each worker asks it.

The parent is the only one that decides whose turn it is at an engine, which request tries a backend again, what is
reserved in budgets, and what is kept of conversations. A worker's own are what takes no part in a promise: what it
has seen of latencies and warm prompts, and its chain of receipts.

parent           what the parent of workers holds
worker_set       the workers as it knows them
shared_state     what each worker holds of what they share, and gives back when it is gone
worker_link      a worker's side
linked_turns, linked_circuits, linked_budgets, linked_shelf
                 what a worker's requests have in the place of what a router alone has
link             messages between the two
written          what is in them; pure
"""
