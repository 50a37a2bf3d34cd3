"""mini-swe-agent mends a bug of attrs in a sandbox of a Dutyfree server, through the server's SWE-ReX face.

    pip install 'dutyfree[server]' swe-rex==1.4.0 aiohttp mini-swe-agent==2.4.6
    python attrs_over_swe_rex.py http://127.0.0.1:8000 TOKEN

The agent, its swerex environment and swe-rex's client are theirs, unchanged, but for the deployment, which is a
`RemoteDeployment` in place of a container. No model is asked: the answers are the opening of the workload T2, with
what each must print.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.extra.swerex_docker import SwerexDockerEnvironment, SwerexDockerEnvironmentConfig
from minisweagent.models.test_models import DeterministicToolcallModel, make_toolcall_output
from swerex.deployment.remote import RemoteDeployment
from swerex.runtime.abstract import Command, UploadRequest

from dutyfree.measure.workloads import catalogue, materials
from dutyfree.model import Stage

SUBMIT = "cd ~/attrs && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"


class RemoteEnvironment(SwerexDockerEnvironment):
    """mini-swe-agent's own environment, on a server that runs already."""

    def __init__(self, host: str, token: str) -> None:
        self.config = SwerexDockerEnvironmentConfig(image="the server's", timeout=120)
        self.deployment = RemoteDeployment(host=host, auth_token=token, timeout=30.0)
        asyncio.run(self.deployment.start())

    def prepare(self, stage: Stage) -> None:
        """Upload the files of a stage, and run its lines."""
        runtime = self.deployment.runtime
        for file in stage.files:
            target = file.target.replace("/~/", "/root/", 1)  # workloads mean the home directory by it
            asyncio.run(runtime.upload(UploadRequest(source_path=str(file.source), target_path=target)))
        for line in stage.run:
            asyncio.run(runtime.execute(Command(command=line, shell=True, check=True, timeout=120)))


class FromAList(DeterministicToolcallModel):
    """A model that answers from a list."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(outputs=[])
        self._lines = lines

    def query(self, messages, **kwargs):  # type: ignore[no-untyped-def]
        """The next line."""
        number = sum(message["role"] == "assistant" for message in messages)
        line, called = self._lines[number], f"call_{number + 1}"
        function = {"name": "bash", "arguments": json.dumps({"command": line})}
        call = {"id": called, "type": "function", "function": function}
        return make_toolcall_output("", [call], [{"command": line, "tool_call_id": called}])


def main(host: str, token: str) -> None:
    """Prepare the sandbox, run the agent, and print what it submits."""
    workload = materials.prepare(catalogue.find("T2"))
    variables = {name: value for stage in workload.stages for name, value in stage.env.items()}
    exports = "".join(f"export {name}={value}; " for name, value in variables.items())
    lines = [exports + str(action.action.command) for action in workload.opening]
    environment = RemoteEnvironment(host, token)
    try:
        for stage in workload.stages:
            environment.prepare(stage)
        templates = {"system_template": "You mend bugs.", "instance_template": "{{task}}"}
        agent = DefaultAgent(FromAList([*lines, SUBMIT]), environment, **templates, cost_limit=0.0)
        ended = agent.run("exclude() of attrs no longer knows fields by their names. Mend it.")
    finally:
        asyncio.run(environment.deployment.stop())
    seen = [message["content"] for message in agent.messages if message["role"] == "tool"]
    for action, content in zip(workload.opening, seen, strict=False):
        for part in action.expect.contains:
            if part not in content:
                raise SystemExit(f"{action.name}: {part!r} is not in what the agent saw:\n{content}")
    print(f"{len(lines) + 1} commands, {ended['exit_status']}:\n{ended['submission']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
