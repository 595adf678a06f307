"""Commands that print something to apply or to source: CRDs, roles, converted manifests, shell completion.

migrate  what changes for objects of the Go implementation, and manifests of the first API as today's objects
crds     the CRDs, and docs/crds.md from the same classes
files    manifests from files
man      manual pages, from what --help says
"""
