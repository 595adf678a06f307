"""Values that the whole server shares, worded exactly as kube-apiserver words them. Pure.

api_errors, field_errors  Status objects and their causes
metadata                  ObjectMeta
selectors, jsonpath       what picks objects and columns
json_text                 JSON as text: measured, read, written
json_values               JSON compared and printed as Go does
"""
