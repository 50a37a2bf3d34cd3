"""Changes of a git repository in a sandbox, as patches: git runs in the sandbox, and the host reads nothing of them."""

from __future__ import annotations

import errno
import re
from collections.abc import Awaitable, Callable
from typing import Final

from dutyfree.checked import FilePath, data_bytes, text, whole, wrong
from dutyfree.errors import ActionFailed, FileFailed, InvalidRequest, PatchRefused
from dutyfree.model import Observation

DEFAULT_LIMIT_BYTES = 16 * 1024**2
DEFAULT_GIT_TIMEOUT_S = 120.0
NO_GIT: Final = 127
Run = Callable[..., Awaitable[Observation]]
"""`Box.run`."""
_REVISION: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9._/@^~{}-]{0,254}")
_QUOTED_CHARACTERS: Final = 4000
_REFUSED: Final = (1, 128)
"""The exit codes of `git apply` for a patch that does not apply, and for what is no patch."""

_WITH_GIT: Final = """\
set -eu
command -v git >/dev/null 2>&1 || { echo 'there is no git in this sandbox' >&2; exit 127; }
export LC_ALL=C GIT_OPTIONAL_LOCKS=0
git() { command git -c safe.directory='*' -c core.fsmonitor=false "$@"; }
"""

# A copy of the index, in which new files are noted, so that the repository's own stays as it is. `cp -p`: git compares
# the times of files with that of the index.
_DIFF: Final = (
    _WITH_GIT
    + """\
index=$(git rev-parse --git-path index)
if ! base=$(git rev-parse -q --verify "$1^{commit}"); then
    [ "$1" = HEAD ] || { echo "there is no commit '$1'" >&2; exit 1; }
    base=$(git hash-object -t tree /dev/null)
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
[ ! -e "$index" ] || cp -p "$index" "$copy/index"
export GIT_INDEX_FILE="$copy/index"
git add --intent-to-add -- .
git diff --binary --no-color --no-ext-diff --no-textconv --no-renames --src-prefix=a/ --dst-prefix=b/ \
    --ignore-submodules=none --relative "$base" -- .
"""
)

# In a subdirectory, `git apply` takes paths from the top of the repository, unless `--directory` says otherwise.
_APPLY: Final = (
    _WITH_GIT
    + """\
prefix=$(git rev-parse --show-prefix 2>/dev/null) || prefix=
git apply --whitespace=nowarn "$@" ${prefix:+--directory="$prefix"} -
"""
)


class BoxGit:
    """Patches of a git repository in a box. Code in the sandbox decides what git says: take it as its output.

    `path` is the repository, or a directory in it, which then stands for itself alone; by default the working directory
    of the box's actions. Each method raises InvalidRequest where there is no git, ActionFailed if git fails (say, there
    is no repository), and otherwise as `Box.run` does.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    async def diff(
        self,
        path: FilePath | None = None,
        *,
        base: str = "HEAD",
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        timeout_s: float = DEFAULT_GIT_TIMEOUT_S,
    ) -> bytes:
        """The changes since `base` as a patch that `apply` takes; empty if there are none.

        It has what was committed since and what was not, new files included, binary ones too, but not those that git
        ignores. The repository and its index stay as they are. Raises FileFailed with EFBIG past `limit_bytes`.
        """
        if _REVISION.fullmatch(text("base", base)) is None:
            raise wrong("base", base, "a commit, branch or tag")
        limit_bytes = whole("limit_bytes", limit_bytes, least=1)
        command = ["/bin/sh", "-c", _DIFF, "git-diff", base]
        seen = await self._run(command, cwd=path, timeout_s=timeout_s, output_limit_bytes=limit_bytes)
        if not seen.ok:
            raise _failed("git diff", seen)
        if seen.truncated:
            place = "." if path is None else str(path)
            raise FileFailed.refused("diff", place, errno.EFBIG, f"the patch has more than {limit_bytes} bytes")
        return seen.stdout

    async def apply(
        self,
        patch: bytes | str,
        path: FilePath | None = None,
        *,
        reverse: bool = False,
        timeout_s: float = DEFAULT_GIT_TIMEOUT_S,
    ) -> None:
        """Apply a patch to the files at `path`, which need not be a repository; `reverse` takes one back.

        All of it, or nothing: a patch that does not apply, or that is none, raises PatchRefused with git's reason, and
        changes nothing. An empty one is fine.
        """
        data = data_bytes("patch", patch)
        if not data.strip():
            return
        command = ["/bin/sh", "-c", _APPLY, "git-apply", *(["--reverse"] if reverse else [])]
        seen = await self._run(command, cwd=path, stdin=data, timeout_s=timeout_s)
        if seen.exit_code in _REFUSED and not (seen.disk_full or seen.oom_killed or seen.pids_limited):
            raise PatchRefused(f"the patch does not apply: {_said(seen)}", observation=seen)
        if not seen.ok:
            raise _failed("git apply", seen)


def _failed(what: str, seen: Observation) -> ActionFailed | InvalidRequest:
    if seen.exit_code == NO_GIT:
        return InvalidRequest("there is no git in this sandbox", hint="add git to its image")
    return ActionFailed(f"{what} failed with code {seen.shell_code}: {_said(seen)}", observation=seen)


def _said(seen: Observation) -> str:
    """Git's own reason: its first complaint, which later lines explain or repeat for each file."""
    if seen.timed_out:
        return "it ran out of time"
    lines = [line.strip() for line in seen.stderr_text[:_QUOTED_CHARACTERS].splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith(("error: ", "fatal: "))]
    said = next(iter(complaints or lines), "it gave no reason")
    return f"{said.removeprefix('error: ').removeprefix('fatal: ')!r:.200}"
