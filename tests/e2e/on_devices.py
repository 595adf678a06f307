"""Run `llmkube` on the devices of another machine: `on_devices.py ROOT PYTHON -m llmkube ARGS`."""

import sys
from pathlib import Path

from llmkube.cli.main import main
from llmkube.supervisor.host import devices

devices.ROOT = Path(sys.argv[1])
sys.argv[1:] = sys.argv[5:]
main()
