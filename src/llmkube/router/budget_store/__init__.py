"""Budgets that hold over a restart: what a request may take is written down before it is sent.

router_budgets  which of the two places the config asks for
kept_budgets    in this process: the meter, and the file that it is kept in
    set_aside   how much of it is set aside for requests; pure
    budget_file the file; synchronous
redis_budgets   at a Redis or Valkey server, for several processes
redis_scripts   what that server computes; pure
"""
