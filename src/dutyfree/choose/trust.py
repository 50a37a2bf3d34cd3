"""Trust classes: whose code a sandbox is for, and how strong a wall that takes."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from dutyfree.model import Isolation


class Trust(StrEnum):
    """Who wrote the code, and whose secrets are on the machine; the most trusted first.

    Compare by `least_isolation`: strings are ordered by their letters.
    """

    TRUSTED = "trusted"
    """You would run it in your own shell: yours, or read by somebody whom you believe."""
    MODEL = "model"
    """A model wrote it for a task that you chose, and the secrets on the machine are your own. It may be wrong and
    greedy, and look where it should not; an attack on the kernel is not expected of it."""
    UNTRUSTED = "untrusted"
    """Strangers had a hand in it (packages, repositories that nobody has read), or a model is rewarded for whatever
    works, ways out included. It must not speak to the host's own kernel."""
    HOSTILE = "hostile"
    """It is there to attack, or the secrets on the machine belong to several owners. It gets a kernel of its own,
    behind a wall of the processor's."""

    @property
    def least_isolation(self) -> Isolation:
        """The weakest wall that will do."""
        return _LEAST[self]

    @property
    def words(self) -> str:
        """Who this is, in a few words."""
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
    Trust.UNTRUSTED: "code in which strangers had a hand, or a model that is rewarded for whatever works",
    Trust.HOSTILE: "code that is expected to attack, or a machine with the secrets of several owners",
}
