"""The nouns on the wire: attrs classes that are the single source of the CRD YAML."""
