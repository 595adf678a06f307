"""Who asks: what a request shows, and whose it is.

client_key  which requests show a key, and what the others are told
key_files   the keys of clients and backends, read again when they change
principals  the team and the tenant of a request
It knows nothing of backends: what a team may use is for `router.policy` to decide.
"""
