"""Programs in the background: `llmkube up`, and both it and the agent as jobs of launchd or systemd.

up_commands     `llmkube up start`, `stop`, `status`, `logs`, `install`, `uninstall`
systemd         the unit of the user's service manager, and calls of systemctl
agent_commands  `llmkube agent install`, `uninstall`, `start`, `restart`, `stop`, `logs`, `sudoers`
agent_status    `llmkube agent status`, `cordon`, `uncordon`, and requests to the agent's probe port
agent_jobs      property lists of jobs; the agent's is made from its settings and an older job; pure
launchctl       load, inspect and unload a job of launchd
log_file        the log of a program in the background, and its rotation
start_limit     consecutive failed starts, counted on disk; the Python that a job was installed with
lan_access      whether macOS lets the job connect to machines on its own network
"""
