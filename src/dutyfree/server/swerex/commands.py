"""Commands and files that are independent of sessions: SWE-ReX's `execute`, `read_file` and `write_file`."""

from __future__ import annotations

import posixpath
from typing import Any, Final

from dutyfree.client.box import Box
from dutyfree.errors import FileFailed
from dutyfree.model import Observation
from dutyfree.server.swerex.failures import Failure, of_dutyfree, of_errno
from dutyfree.server.swerex.requests import Execute, ReadFile, WriteFile
from dutyfree.server.swerex.settings import Settings
from dutyfree.server.swerex.text import cut_note, decoded, file_text

_NOT_RUN: Final = {"No such file or directory": 2, "Permission denied": 13}


async def execute(box: Box, request: Execute, settings: Settings) -> dict[str, Any]:
    """Run a command as `subprocess.run` does, but for `env`, which is added to the image's environment."""
    argv = _argv(request)
    seen = await box.run(
        argv,
        timeout_s=settings.limited_s(request.timeout_s),
        env=request.env,
        cwd=settings.workdir if request.cwd is None else posixpath.join(settings.workdir, request.cwd),
        merge=request.merge_output_streams,
        output_limit_bytes=settings.max_output_bytes,
    )
    if seen.timed_out:
        message = f"Timeout ({request.timeout_s}s) exceeded while running command"
        raise Failure.named("CommandTimeoutError", message)
    _check_started(argv[0], seen)
    exit_code = -(seen.signal or 0) if seen.exit_code is None else seen.exit_code
    stdout, stderr = decoded(seen.stdout) + cut_note(seen), decoded(seen.stderr)
    if request.check and exit_code != 0:
        command = request.command if isinstance(request.command, str) else list(request.command)
        message = f"Command {command!r} failed with exit code {exit_code}. Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
        raise Failure.named("NonZeroExitCodeError", f"{request.error_msg}: {message}" if request.error_msg else message)
    return {"stdout": stdout, "stderr": stderr, "exit_code": exit_code}


async def read(box: Box, request: ReadFile, settings: Settings) -> dict[str, Any]:
    """The text of a file."""
    path = posixpath.join(settings.workdir, request.path)
    try:
        data = await box.files.read(path, limit_bytes=settings.max_body_bytes)
    except FileFailed as error:
        raise of_dutyfree(error, request.path) from None
    try:
        return {"content": file_text(data, request.encoding, request.errors)}
    except (ValueError, LookupError, TypeError) as error:
        raise Failure.of(error) from None


async def write(box: Box, request: WriteFile, settings: Settings) -> dict[str, Any]:
    """Write text to a file; missing directories are made."""
    try:
        await box.files.write(posixpath.join(settings.workdir, request.path), request.content)
    except FileFailed as error:
        raise of_dutyfree(error, request.path) from None
    return {}


def _argv(request: Execute) -> list[str]:
    words = [request.command] if isinstance(request.command, str) else list(request.command)
    if request.shell:
        return ["/bin/sh", "-c", *words]
    if not words:
        raise Failure("builtins.ValueError", "the command is an empty list")
    return words


def _check_started(program: str, seen: Observation) -> None:
    """Raise Failure if the program could not be started: subprocess raises OSError then."""
    said = seen.stdout or seen.stderr
    start = f"dutyfree: cannot run {program}: ".encode("utf-8", "surrogateescape")
    if seen.exit_code in (126, 127) and said.startswith(start):
        reason = said[len(start) :].decode("utf-8", "replace").strip()
        raise of_errno(_NOT_RUN.get(reason, 8), program)
