"""Model files: where they come from, where they are kept, what their headers say."""
