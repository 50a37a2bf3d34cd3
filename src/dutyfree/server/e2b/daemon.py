"""One call to a sandbox's daemon: whose it is, as which user, and how much time it has."""

from __future__ import annotations

import base64
import binascii
import time
from dataclasses import dataclass, field

from dutyfree.client.box import Box
from dutyfree.contract import Files
from dutyfree.errors import InvalidRequest
from dutyfree.model import User
from dutyfree.server.e2b import connect
from dutyfree.server.e2b.accounts import Accounts
from dutyfree.server.e2b.errors import RpcError
from dutyfree.server.e2b.http import Request
from dutyfree.server.e2b.settings import Settings


@dataclass(slots=True)
class Call:
    """What the handlers of the daemon need."""

    box: Box
    user: User | None
    accounts: Accounts
    settings: Settings
    timeout_s: float | None = None
    keepalive_s: float = 90.0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def files(self) -> Files:
        """The sandbox's files, with the rights of the call's user."""
        return self.box.files if self.user is None else self.box.files.as_user(self.user)

    async def path(self, path: str) -> str:
        """The absolute path that a client means. Raises InvalidRequest."""
        return await self.accounts.absolute(self.box, path, self.user)

    def wait_s(self, wanted_s: float) -> float:
        """How long to wait next: `wanted_s`, or less if the call's time ends before."""
        if self.timeout_s is None:
            return wanted_s
        return max(0.001, min(wanted_s, self.began_s + self.timeout_s - time.monotonic()))

    @property
    def is_late(self) -> bool:
        """Whether the call's time is over."""
        return self.timeout_s is not None and time.monotonic() - self.began_s >= self.timeout_s

    def check_deadline(self) -> None:
        """Raise `deadline_exceeded` once the call's time is over. Clients begin to count later, so it comes in time."""
        if self.is_late:
            raise RpcError("deadline_exceeded", f"the call took longer than {self.timeout_s:g} s")


async def read_call(request: Request, box: Box, accounts: Accounts, settings: Settings) -> Call:
    """The call of a request. Raises InvalidRequest."""
    user = await accounts.user(box, read_user(request.header(b"authorization")))
    timeout_s = connect.timeout_s(request.header(b"connect-timeout-ms"))
    keepalive_s = connect.keepalive_s(request.header(b"keepalive-ping-interval"), settings.keepalive_s)
    return Call(box, user, accounts, settings, timeout_s, keepalive_s)


def read_user(authorization: str | None) -> str | None:
    """The user of `Authorization: Basic base64("user:")`; None without one. Raises InvalidRequest."""
    if authorization is None:
        return None
    scheme, _, data = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(data.strip(), validate=True).decode().partition(":")[0] or None
    except (ValueError, binascii.Error):
        raise InvalidRequest("the user in the header Authorization cannot be read") from None
