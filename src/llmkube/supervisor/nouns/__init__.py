"""nouns."""
