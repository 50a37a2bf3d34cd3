"""mini-swe-agent mends a bug of attrs in a sandbox of a Dutyfree server, through each of the server's faces.

    pip install 'dutyfree[server]' mini-swe-agent==2.4.6 swe-rex==1.4.0 aiohttp e2b==2.63.0
    python mend_attrs.py swe-rex http://127.0.0.1:7481 TOKEN
    python mend_attrs.py e2b http://127.0.0.1:7481 TOKEN
    python mend_attrs.py native http://127.0.0.1:7480 TOKEN

The agent, its swerex environment and the clients of swe-rex and E2B are theirs, unchanged; the environments for E2B and
for native clients are the few lines below. No model is asked: the answers are the opening of the workload T2, with what
each must print.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.extra.swerex_docker import SwerexDockerEnvironment, SwerexDockerEnvironmentConfig
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicToolcallModel, make_toolcall_output

from dutyfree.measure.workloads import catalogue, materials
from dutyfree.model import Stage

SUBMIT = "cd ~/attrs && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"


class Environment(Protocol):
    """What each face needs: an environment of mini-swe-agent that can be prepared and ended."""

    def prepare(self, stage: Stage) -> None:
        """Upload the files of a stage, and run its lines."""

    def end(self) -> None:
        """Give the sandbox back."""


class OverSweRex(SwerexDockerEnvironment):
    """mini-swe-agent's own environment, on a server that runs already."""

    def __init__(self, url: str, token: str) -> None:
        from swerex.deployment.remote import RemoteDeployment

        self.config = SwerexDockerEnvironmentConfig(image="the server's", timeout=120)
        self.deployment = RemoteDeployment(host=url, auth_token=token, timeout=30.0)
        asyncio.run(self.deployment.start())

    def prepare(self, stage: Stage) -> None:
        from swerex.runtime.abstract import Command, UploadRequest

        runtime = self.deployment.runtime
        for file in stage.files:
            request = UploadRequest(source_path=str(file.source), target_path=target_of(file.target))
            asyncio.run(runtime.upload(request))
        for line in stage.run:
            asyncio.run(runtime.execute(Command(command=line, shell=True, check=True, timeout=120)))

    def end(self) -> None:
        asyncio.run(self.deployment.stop())


class OverE2B(LocalEnvironment):
    """A sandbox of E2B's SDK."""

    def __init__(self, url: str, token: str) -> None:
        from e2b import Sandbox

        super().__init__(timeout=120)
        self._box = Sandbox.create(api_url=url, sandbox_url=url, api_key=token, timeout=600)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        from e2b import CommandExitException

        try:
            seen: Any = self._box.commands.run(action["command"], cwd=cwd or None, timeout=timeout or 120)
        except CommandExitException as failed:  # an exit code that is not 0
            seen = failed
        output = {"output": seen.stdout + seen.stderr, "returncode": seen.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def prepare(self, stage: Stage) -> None:
        for file in stage.files:
            source, target = Path(file.source), target_of(file.target)
            for each in (source, *source.rglob("*")):
                if each.is_file():
                    self._box.files.write(str(Path(target) / each.relative_to(source)), each.read_bytes())
        for line in stage.run:
            self._box.commands.run(line, timeout=120)

    def end(self) -> None:
        self._box.kill()


class Native(LocalEnvironment):
    """A box of `dutyfree.sync.connect`."""

    def __init__(self, url: str, token: str) -> None:
        from dutyfree import sync

        super().__init__(timeout=120)
        self._host = sync.connect(url, token=token).__enter__()
        self._box = self._host.acquire()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        seen = self._box.run(action["command"], cwd=cwd or None, timeout_s=timeout or 120, merge=True)
        output = {"output": seen.text, "returncode": seen.shell_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def prepare(self, stage: Stage) -> None:
        for file in stage.files:
            self._box.files.upload(file.source, target_of(file.target))
        for line in stage.run:
            self._box.run(line, timeout_s=120, check=True)

    def end(self) -> None:
        self._host.__exit__(None, None, None)


FACES = {"swe-rex": OverSweRex, "e2b": OverE2B, "native": Native}


def target_of(path: str) -> str:
    """Workloads mean the home directory by `/~/`."""
    return path.replace("/~/", "/root/", 1)


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


def main(face: str, url: str, token: str) -> None:
    """Prepare the sandbox, run the agent, and print what it submits."""
    workload = materials.prepare(catalogue.find("T2"))
    variables = {name: value for stage in workload.stages for name, value in stage.env.items()}
    exports = "".join(f"export {name}={value}; " for name, value in variables.items())
    lines = [exports + str(action.action.command) for action in workload.opening]
    environment = FACES[face](url, token)
    try:
        for stage in workload.stages:
            environment.prepare(stage)
        templates = {"system_template": "You mend bugs.", "instance_template": "{{task}}"}
        agent = DefaultAgent(FromAList([*lines, SUBMIT]), environment, **templates, cost_limit=0.0)
        ended = agent.run("exclude() of attrs no longer knows fields by their names. Mend it.")
    finally:
        environment.end()
    seen = [message["content"] for message in agent.messages if message["role"] == "tool"]
    for action, content in zip(workload.opening, seen, strict=False):
        for part in action.expect.contains:
            if part not in content:
                raise SystemExit(f"{action.name}: {part!r} is not in what the agent saw:\n{content}")
    print(f"{len(lines) + 1} commands, {ended['exit_status']}:\n{ended['submission']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
