"""Which kinds the server has: built-in ones and those of CustomResourceDefinitions. Pure.

catalog, kind_info      kinds by group, version and plural; CRDs come and go
builtin_rules, *_rules  what kube-apiserver defaults and validates beyond a schema
scale                   the scale subresource
"""
