"""Authenticate clients by a key or a token.

principals     the team and tenant of a request, and the refusals
client_key     the credential in a request; key_files: keys of clients and backends, read again when they change
issued_keys    a line of a key file: a key, or its digest with its holder, expiry and models
token_checker  verifies a JSON Web Token: token_form, then token_keys, then claims
token_keys     the keys of an issuer and their age; jwks_refresh: reads them again
jwk_set        parses a JWK Set; the only module that loads PyJWT

Authorization is elsewhere: `router.policy` decides which models a team may use.
"""
