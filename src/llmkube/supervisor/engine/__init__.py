"""Engine processes: started, watched, ended, and found again after a restart of the agent.

launcher, child     from a plan to a process, and its end
proxy, key_file     what a published engine has beside it: a proxy, the file of its keys
health              does it answer, does it move
process_stats       memory and processor time of all engines, sampled at once; which processes carry a cookie
keep_awake          a Mac that does not sleep while an engine works
orphans, logfile    processes of an earlier agent, and those that do not end; the log
"""
