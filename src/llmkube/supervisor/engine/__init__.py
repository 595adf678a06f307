"""Engine processes: started, watched, stopped, and adopted after a restart of the agent.

launcher, child     from a plan to a process, and its end
proxy, key_file     companions of a published engine: its proxy, and the file with its keys
health              readiness, hang detection and draining
process_stats       memory and processor time of all engines, sampled at once; scans for cookies
door                the process that accepts the requests of services that are loaded on request
keep_awake          keeps a Mac awake while an engine works
prompt_files        saved prompts on disk: records, checks, a bounded size
orphans, logfile    processes of an earlier agent, and processes that survive KILL; the log
"""
