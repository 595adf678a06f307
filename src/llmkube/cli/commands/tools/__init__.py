"""Commands that print manifests, scripts and pages: CRDs, roles, converted manifests, shell completion, man pages.

migrate  `migrate`: check objects of the Go implementation; `convert`: convert manifests and other files
other_programs, llama_command  read llama-swap's YAML, llama-server's presets and an Ollama for `convert`
crds     the CRDs, and docs/reference/crds.md from the same classes
rbac     roles and policies
files    read manifests from files
man      manual pages made from --help, and shell completion
"""
