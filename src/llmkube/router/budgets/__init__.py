"""Budgets of tokens and dollars: reserved before a request is sent, settled after it. Pure.

ledger   accounts: spending in a rolling window, and reservations
meter    the budgets that apply to a request, the most that it may use, and what it used
usage    the tokens of an answer, as reported by its backend
"""
