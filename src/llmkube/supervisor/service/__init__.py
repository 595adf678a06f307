"""One InferenceService on this host, in one nursery.

planner                  from the wish to a target: check, fetch, read the header, plan
runner, attempt          one engine after the other, and what one of them goes through
context                  what its engines share
loading                  from the process to its first answer to clients
metal                    what only an engine on a Mac's GPU does
measuring                what an engine really holds
facts                    what is known of the service, as one frozen value
events                   the conditions that follow from the facts, and the Events from a change of them
status_manager           keeps the facts and writes what follows: where the engine is and whether it answers
engine_status            which of two engines is reported, and why one has ended
"""
