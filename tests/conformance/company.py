"""Which checks must run while nothing else does."""

from __future__ import annotations

from dutyfree.testing import Check


def is_alone(check: Check, substrate: str) -> bool:
    """Whether other work on the machine would change its result.

    `limits.cpu` compares processor time with and without a limit. Containers of a Docker engine are children of its
    daemon, so that the leak checks cannot tell ours from those of another test.
    """
    return check.id == "limits.cpu" or ("leaks" in check.id and substrate.startswith("docker"))
