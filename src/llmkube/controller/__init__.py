"""The in-cluster half: derives status from what hosts and pods report."""
