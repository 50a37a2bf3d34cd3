"""Trust classes: who wrote the code that a sandbox runs, and how strongly it must be isolated."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from dutyfree.model import Isolation


class Trust(StrEnum):
    """Who wrote the code, and who owns the secrets on the machine; the most trusted class first.

    Compare classes by `least_isolation`: the classes themselves are strings, which compare alphabetically.
    """

    TRUSTED = "trusted"
    """Code that you would run in your own shell: you wrote it, or a person whom you trust has read it."""
    MODEL = "model"
    """A model wrote the code for a task that you chose, and the secrets on the machine are your own. The code may be
    wrong, use too many resources and read files that it should not; it is not expected to attack the kernel."""
    UNTRUSTED = "untrusted"
    """Strangers wrote parts of the code (packages and repositories without review), or a model gets a reward for
    anything that works, an escape included. The code must not call the host's kernel."""
    HOSTILE = "hostile"
    """The code is expected to attack, or the secrets on the machine belong to several owners. The code gets its own
    kernel, which the processor's virtualization isolates."""

    @property
    def least_isolation(self) -> Isolation:
        """The weakest isolation that this class allows."""
        return _LEAST[self]

    @property
    def words(self) -> str:
        """A short description of the class."""
        return _WORDS[self]


_LEAST: Final = {
    Trust.TRUSTED: Isolation.NONE,
    Trust.MODEL: Isolation.NAMESPACE,
    Trust.UNTRUSTED: Isolation.USER_KERNEL,
    Trust.HOSTILE: Isolation.MICROVM,
}
_WORDS: Final = {
    Trust.TRUSTED: "code that you would run in your own shell",
    Trust.MODEL: "code that a model writes for tasks that you chose; the secrets on the machine are yours",
    Trust.UNTRUSTED: "code that strangers wrote in part, or a model that gets a reward for anything that works",
    Trust.HOSTILE: "code that is expected to attack, or a machine with the secrets of several owners",
}
