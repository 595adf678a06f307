"""The command line: it may import every room, and no room imports it.

main                                      the list of commands; each is imported when it runs
commands                                  one module per command, by subject
view                                      tables, progress, explanations: how things look on a terminal
engine_pod                                programs beside an engine in its pod
job                                       the program inside a download Job's pod
catalog, ollama_library                   models that can be deployed by name; `ollama://…`, pulled by an Ollama
bundled_engine, daemon_engine             llama-server over xllamacpp; one model of a daemon, as an engine
options, config, target_cluster, program  what commands share
state_location, state_lock                where the state directory is; which program works on it
program_name, line_breaks                 what a reader types to call this program; where long lines break
config_edit                               settings that a command adds to a config.toml
credential_note, full_disk_note           what makes old what a command shows: a credential, a full disk
"""
