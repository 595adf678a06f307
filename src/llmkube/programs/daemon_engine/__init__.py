"""One model of a shared daemon as an engine of ours: a process that the agent supervises like llama-server.

serving, front_options            what the programs of all daemons share, and their command line
adapter                           what a daemon has to be able to do with one model
keeper                            looks, decides, acts
keeping, unloading, seen, steps   what to do next so that a model stays, or is gone, from what was seen: pure
model_lock                        who else uses the model, and whether a killed front has left it loaded
front, naming, counters           what clients and the agent reach; the model's name; `/metrics` and `/slots`
server_process, daemon_http       a server that is borrowed, or ours; questions to it
processes, process                what the kernel shows
ollama, omlx                      Ollama; oMLX

A daemon that we did not start is borrowed: it is told to load and to unload our model, and never ended.
"""
