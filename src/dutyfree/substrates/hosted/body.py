"""The body of a hosted sandbox on the guest path: the service's sandbox, with our guest carried in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from dutyfree.errors import Unsupported
from dutyfree.model import Unenforced
from dutyfree.substrates.engine import Body
from dutyfree.wire.channel import Channel


class HostedBody(Body):
    """A sandbox of the service whose guest speaks over one command."""

    def __init__(
        self,
        sandbox_id: str,
        channel: Channel,
        *,
        env: Mapping[str, str],
        cwd: str,
        unenforced: tuple[Unenforced, ...],
        end: Callable[[str], Awaitable[None]],
    ) -> None:
        """`end` kills the service's sandbox of this id."""
        self.sandbox_id = sandbox_id
        self.channel = channel
        self.env = dict(env)
        self.cwd = cwd
        self.unenforced = unenforced
        self._end = end

    async def connect(self) -> Channel:
        raise Unsupported("on the exec path, actions of a hosted sandbox are calls of the SDK")

    async def end(self) -> None:
        self.channel.close()
        await self._end(self.sandbox_id)
