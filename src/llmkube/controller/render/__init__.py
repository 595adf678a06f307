"""Nouns in, manifests out: pure functions, the same bytes for the same objects."""
