"""Engine processes: started, watched, ended, and found again after a restart of the agent.

launcher, child   from a plan to a process, and its end
health, stuck     does it answer, does it move
model_watch       does it still have its model, where another program may take that away
process_stats     memory and processor time of all engines, sampled at once
cookie_scan       which processes carry the cookie of an engine
keep_awake        a Mac that does not sleep while an engine works
orphans, logfile  processes of an earlier agent; the log
"""
