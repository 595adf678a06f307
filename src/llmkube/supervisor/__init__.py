"""The core: one nursery per InferenceService on the host that serves it."""
