"""What SWE-agent does with a remote deployment, call by call: sessions, tools, edits, a timeout, and a new start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from swerex.deployment.config import RemoteDeploymentConfig
from swerex.exceptions import CommandTimeoutError
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

import dutyfree

from .conftest import Gateway

TOOL = "#!/usr/bin/env python3\nimport sys\nprint('edited', sys.argv[1])\n"


async def communicate(runtime: RemoteRuntime, line: str, check: str = "ignore") -> str:
    """As `SWEEnv.communicate`."""
    seen = await runtime.run_in_session(BashAction(command=line, timeout=25, check=check))
    return str(seen.output)


async def test_an_episode(host: dutyfree.LocalHost, gateway: Gateway, tmp_path: Path) -> None:
    bundle = tmp_path / "edit_tool"
    (bundle / "bin").mkdir(parents=True)
    (bundle / "bin" / "edit").write_text(TOOL)
    (bundle / "install.sh").write_text("export EDITOR_READY=yes\n")
    deployment = RemoteDeploymentConfig(
        auth_token="alice-token/task-1", port=await gateway(), timeout=10
    ).get_deployment()
    for _ in range(2):  # SWE-agent starts the same deployment again for the next attempt
        await deployment.start()
        runtime = deployment.runtime
        await runtime.create_session(CreateBashSessionRequest(startup_source=["/root/.bashrc"], startup_timeout=10))
        variables = "export LANG=C.UTF-8 PAGER=cat && export REPO='/repo'"
        await communicate(runtime, variables, check="raise")
        await asyncio.gather(
            runtime.upload(UploadRequest(source_path=str(bundle), target_path="/root/tools/edit_tool"))
        )
        await communicate(
            runtime,
            "export PATH=/root/tools/edit_tool/bin:$PATH && chmod +x /root/tools/edit_tool/bin/* && "
            "cd /root/tools/edit_tool && source install.sh",
            check="raise",
        )
        checks = (communicate(runtime, f"which {name}", check="raise") for name in ("edit", "git"))
        assert (await asyncio.gather(*checks))[0] == "/root/tools/edit_tool/bin/edit\n"
        await communicate(runtime, "mkdir -p $REPO && cd $REPO && git init -q . && ls -A", check="raise")
        assert await communicate(runtime, "edit x; echo $EDITOR_READY $PWD") == "edited x\nyes /repo\n"
        with pytest.raises(CommandTimeoutError):
            await runtime.run_in_session(BashAction(command="cat /dev/zero > /dev/null", timeout=0.3, check="ignore"))
        await runtime.run_in_session(BashInterruptAction())
        await runtime.write_file(WriteFileRequest(path="/repo/a.py", content="print(1)\n"))
        patch = "git add -A && git diff --cached > /root/model.patch"
        await communicate(runtime, patch, check="raise")
        read = ReadFileRequest(path="/root/model.patch", encoding="utf-8", errors="backslashreplace")
        assert "+print(1)" in (await runtime.read_file(read)).content
        await deployment.stop()
        assert host.leases() == []
