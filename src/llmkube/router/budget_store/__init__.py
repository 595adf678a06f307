"""Budgets that survive a restart: a reservation is stored before its request is sent.

router_budgets  chooses one of the two stores by the config
local_budgets   the budgets of this process: the meter, and its file
    set_aside   how much the file sets aside for requests; pure
    budget_file the file; synchronous
redis_budgets   budgets at a Redis or Valkey server, for several processes, and the scripts that run there
"""
