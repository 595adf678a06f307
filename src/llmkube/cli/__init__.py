"""The command line. It may import every package; no package imports it.

main                                   the list of commands; each is imported when it runs
commands                               one module per command, by subject
view                                   terminal output: tables, progress, explanations
catalog                                models that can be deployed by name
lazy_group                             a click group that imports a command on demand
options, target_cluster, object_names  shared by commands: options, the cluster to talk to, names of objects
config_edit                            edits of config.toml
host_warnings                          reasons why the output may be out of date: a credential problem, a full disk
"""
