"""Programs without a terminal: `llmkube up` by hand, and both it and the agent as jobs of launchd or systemd.

up_commands     `llmkube up start`, `stop`, `status`, `logs`, `install`, `uninstall`
systemd         the unit of the user's service manager; pure, and the calls of systemctl
agent_commands  `llmkube agent install`, `uninstall`, `start`, `restart`, `logs`
agent_status    `llmkube agent status`, also `--watch`; `cordon`, `uncordon`; what a program answers at its port
agent_jobs      jobs as property lists; what the agent's says, from settings and an older job; pure
launchctl       load, look, unload: each waits until it is so; in which domain a user's jobs are
log_file        what such a program has written; the log that launchd never opens again
start_limit     failed starts in a row, counted on disk; the Python that a job was installed with
lan_access      whether macOS lets the job talk to machines of its own network
"""
