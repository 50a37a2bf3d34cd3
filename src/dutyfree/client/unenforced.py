"""What a host says about limits and walls that its sandboxes lack: a warning, or a refusal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from dutyfree.errors import UnenforcedWarning, Unsupported
from dutyfree.model import Capability, Unenforced
from dutyfree.model.spec import describe_unenforced


class UnenforcedNotice:
    """Warns once of each kind of limit or wall that sandboxes of one host lack."""

    def __init__(self) -> None:
        self._known: set[Capability] = set()

    def check(self, unenforced: Sequence[Unenforced], *, strict: bool) -> None:
        """Warn of the kinds that are new; raise Unsupported instead if the lease is strict."""
        if strict:
            hint = "`dutyfree doctor` says what is missing; leave out strict=True, or ask for less, to go without"
            raise Unsupported(f"not enforced here: {describe_unenforced(unenforced)}", hint=hint)
        new = [each for each in unenforced if each.what not in self._known]
        if not new:
            return
        self._known.update(each.what for each in new)
        message = (
            f"not enforced here: {describe_unenforced(new)} (hint: `dutyfree doctor` says what is missing, "
            "strict=True refuses such sandboxes, box.unenforced lists what each lacks)"
        )
        warnings.warn(message, UnenforcedWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """The level of the nearest frame that is the user's, for a warning of the function that asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "dutyfree",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return level
