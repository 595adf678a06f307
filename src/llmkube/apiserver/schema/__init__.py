"""Structural schemas: defaults, pruning, validation and CEL rules, as in CustomResourceDefinitions. Pure.

structural                     a schema, parsed once
defaults                       fill in defaults, drop unknown fields and nulls
validation                     the errors of an object, in kube-apiserver's words
cel, cel_rules, cel_functions  `x-kubernetes-validations`
cel_evaluator                  evaluation of rules within a cost budget
patterns                       RE2, within a limit of work; string formats
builtin_types                  the schemas of built-in kinds
"""
