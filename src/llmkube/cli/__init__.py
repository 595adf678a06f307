"""The command line: it may import every room, and no room imports it.

main                                      the list of commands; each is imported when it runs
commands                                  one module per command, by subject
view                                      tables, progress, explanations: how things look on a terminal
engine_pod                                programs beside an engine in its pod
job                                       the program inside a download Job's pod
catalog                                   models that can be deployed by name
bundled_engine                            llama-server as a Python program, over xllamacpp
options, config, target_cluster, program  what commands share
state_lock                                which program works on a state directory
program_name                              what a reader types to call this program
config_edit                               settings that a command adds to a config.toml
credential_note                           what is wrong with the credential of this host's agent
"""
