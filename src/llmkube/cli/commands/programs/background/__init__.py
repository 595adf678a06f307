"""`llmkube up` without a terminal: started and stopped by hand, or by systemd at every login.

up_commands   `llmkube up start`, `stop`, `status`, `logs`, `install`, `uninstall`
systemd       the unit of the user's service manager; pure, and the calls of systemctl
"""
