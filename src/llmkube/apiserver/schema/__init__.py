"""Structural schemas: defaults, pruning, validation and CEL rules, as CustomResourceDefinitions have them. Pure.

structural                     a schema, parsed once
defaults                       fill in, drop unknown fields and nulls
validation                     the errors of an object, in kube-apiserver's words
cel, cel_rules, cel_functions  `x-kubernetes-validations`
cel_evaluator                  what they say of an object, within what they may cost
patterns                       RE2, within a bound; string formats
builtin_types                  the schemas of built-in kinds
"""
