"""Print what `llmkube agent install` writes, for a user called ada whose program is in /opt/llmkube."""

import sys
from pathlib import Path

from llmkube.cli.commands.programs.background.agent_jobs import AddedSettings, User, agent_job, plist_text
from llmkube.programs.config import AgentConfig

sys.executable = "/opt/llmkube/bin/python"
ADA = User(uid=501, name="ada", home=Path("/Users/ada"))
STATE = ADA.home / "Library" / "Application Support" / "llmkube"
sys.stdout.buffer.write(plist_text(agent_job(ADA, STATE, AgentConfig(), AddedSettings(), daemon=False)))
