"""`python -m llmkube` is `llmkube`."""

from llmkube.cli.main import main

main()
