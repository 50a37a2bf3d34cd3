"""Resolves a name in a registry or an engine to its current manifest digest."""

from __future__ import annotations

import re
from typing import Final

from dutyfree.errors import InfraFailed
from dutyfree.images.commands import CommandFailed, run_command
from dutyfree.images.oci import skopeo

TIMEOUT_S: Final = 120.0
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


async def manifest_digest(source: str) -> str:
    """The digest of the manifest, or of the list of manifests, that `source` names. Raises as `skopeo.fetch` does."""
    options = [option.replace("--src-", "--") for option in skopeo.source_options(source, insecure=False)]
    command = ["skopeo", "inspect", "--no-tags", *options, "--format", "{{.Digest}}", "--", source]
    try:
        output = await run_command(command, timeout_s=TIMEOUT_S, env=skopeo.environment())
    except CommandFailed as error:
        raise skopeo.failure(source, str(error)) from error
    found = _DIGEST.findall(output)
    if not found:
        raise InfraFailed(f"skopeo did not print the digest of {source!r}", hint="install a newer skopeo")
    return str(found[-1])
