"""Who asks: what a request shows, and whose it is.

principals     the team and the tenant of a request, and what all others are told
client_key     which requests show a key; key_files: those of clients and backends, read again when they change
token_checker  whom a JSON web token lets in: token_form, then token_keys, then claims
token_keys     the keys of an issuer and their age; jwks_refresh: reads them again
jwk_set        what they are written as; it alone loads PyJWT
It knows nothing of backends: what a team may use is for `router.policy` to decide.
"""
