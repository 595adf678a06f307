"""Programs that run until they are stopped, or run in a pod; commands of `cli` start them.

one_machine                      what `llmkube up` runs in its process
router_host                      the ModelRouters of `llmkube up`
lan_gateway                      `up --listen`: the gateway for other machines
api_server                       the embedded API server, with a client of it
daemon_engine, bundled_engine    one model of a shared daemon as an engine; llama-server over xllamacpp
ollama_library                   `ollama://…`, pulled by an Ollama
engine_proxy                     runs in front of a published engine
mlx_entry                        runs before mlx_lm.server, in its own Python
engine_pod                       programs beside an engine in its pod
fetch_job                        the program of the pods that fetch weights
config, options                  settings of each program, their flags
host_settings, host_name         what an agent makes of them; the host's name and address
program, failures                signals, ports and nurseries of a program; exit codes, errors and the program's name
state_location, state_dir        the state directory and its locks
informer, server_side_apply      followed objects; manifests that are applied
"""
