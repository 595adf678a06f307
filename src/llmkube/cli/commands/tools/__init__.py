"""Commands that print something to apply or to source: CRDs, roles, converted manifests, shell completion.

migration                 what changes for objects of the Go implementation
crd_reference             docs/crds.md, from the same classes as the CRDs
files, server_side_apply  manifests from files, applied to a cluster
man                       manual pages, from what --help says
update_check              whether the package index has a newer release
"""
