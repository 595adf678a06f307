"""The command line: may import everything, imported by nothing."""
