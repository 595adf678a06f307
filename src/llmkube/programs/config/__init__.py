"""The settings of every program: their classes are the flags, the variables and the keys of `config.toml`."""
