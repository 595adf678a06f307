"""One InferenceService on this host, in one nursery.

planner                  desired state to target: check, fetch, read the header, plan
gate                     between planner and runner: a launch passes while the service is wanted; the activator,
                         which loads and unloads services on request
runner, attempt          the sequence of engines, and the life of one of them
context                  state that all engines of the service share
loading                  from the start of the process to its first answer to clients
saved_prompts            what an engine has computed, saved before its stop and restored after the next load
metal                    failures of engines on a Mac's GPU
measurement              memory that an engine really uses
facts                    everything known about the service, as one frozen value
events                   conditions derived from the facts, and Events derived from changes of them
door_link                connection to the door, which holds requests
status_manager           holds the facts; writes status, Events and the endpoint
engine_status            which of two engines is reported, and why an engine exited
"""
