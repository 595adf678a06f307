"""One InferenceService on this host, in one nursery.

planner                  from the wish to a target: check, fetch, read the header, plan
runner, attempt          one engine after the other, and what one of them goes through
context, engine_journal  what its engines share; what the next agent finds of one
loading                  from the process to its first answer to clients
leftover                 what a killed engine has left in a daemon that services share
metal                    what only an engine on a Mac's GPU does
measuring                what an engine really holds
facts                    what is known of the service, as one frozen value
events                   the conditions that follow from the facts, and the Events from a change of them
endpoint_objects         where the engine is and whether it answers, as objects
status_manager           keeps the facts and writes what follows
engine_status            which of two engines is reported, and why one has ended
"""
