"""Budgets that hold over a restart: kept in a file of SQLite, written before a request is sent.

kept_budgets  the budgets of one router: the meter, and the file that it is kept in
budget_file   the file; synchronous
"""
