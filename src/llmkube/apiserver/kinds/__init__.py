"""The kinds that the server has: built-in ones and those of CustomResourceDefinitions. Pure.

catalog, kind_info      kinds by group, version and plural; CRDs add and remove some
builtin_rules, *_rules  kube-apiserver's defaults and validation beyond a schema
scale                   the scale subresource
"""
