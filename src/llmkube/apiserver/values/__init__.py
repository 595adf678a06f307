"""Values that the whole server uses, worded exactly as in kube-apiserver. Pure.

api_errors, field_errors  Status objects and their causes
metadata                  ObjectMeta
selectors, jsonpath       select objects, and cells of Tables
json_text                 JSON as text: measured, read, written
json_values               JSON, compared and printed as Go does
"""
