"""The command line: it may import every room, and no room imports it.

main                                      the list of commands; each is imported when it runs
commands                                  one module per command, by subject
view                                      tables, progress, explanations: how things look on a terminal
catalog                                   models that can be deployed by name
options, target_cluster                   what commands share
config_edit                               settings that a command adds to a config.toml
credential_note                           what makes old what a command shows: a credential, a full disk
"""
