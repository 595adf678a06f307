"""Process 1 of a PID namespace: run one program, reap what the kernel hands over, and end as the program does."""

import os
import signal
import sys


def main() -> int:
    """Run the arguments; when this ends, the kernel kills whatever else is in the namespace."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, setsigmask=[])
    while True:
        signal.sigwait({signal.SIGCHLD})
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)  # never ECHILD: the program is there until we return
            if pid == child:
                return os.waitstatus_to_exitcode(status) & 0xFF
            if pid == 0:
                break


if __name__ == "__main__":
    sys.exit(main())
