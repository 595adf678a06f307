"""How many tokens and dollars requests may take together: reserved, then settled. Pure.

ledger   what was taken in a rolling window, and what is reserved; pure
meter    which budgets a request is under, what it may take at most, what it took
    usage    the tokens of an answer, as its backend says
"""
