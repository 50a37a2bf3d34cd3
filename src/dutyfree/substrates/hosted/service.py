"""The service, through its SDK: creates, renews, finds and kills sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from e2b import AsyncSandbox, SandboxQuery

from dutyfree.errors import DutyfreeError, InvalidRequest, SandboxGone
from dutyfree.model import Network, SandboxSpec
from dutyfree.substrates.hosted.failures import failure

CLAIM: Final = "dutyfree-claim"
"""The metadata of our sandboxes: the claim of the process that made them."""
_MAX_PAGES: Final = 100


@dataclass(frozen=True, slots=True)
class Service:
    """Where it is, and what every call says."""

    template: str | None
    timeout_s: int
    connection: dict[str, Any] = field(repr=False)
    """The SDK's own parameters; the key is among them."""

    async def create(self, spec: SandboxSpec, claim: str) -> AsyncSandbox:
        """A new sandbox. Raises as `Substrate.create` does."""
        internet = {Network.NONE: False, Network.BRIDGE: True}.get(spec.network)
        async with translated("create a sandbox"):
            try:
                return await AsyncSandbox.create(
                    self.template,
                    timeout=self.timeout_s,
                    metadata={CLAIM: claim},
                    envs=dict(spec.env),
                    allow_internet_access=internet,
                    **self.connection,
                )
            except DutyfreeError:
                raise
            except Exception as error:
                found = failure("create a sandbox", error)
                if isinstance(found, SandboxGone):  # what is not found is the template
                    raise InvalidRequest(
                        found.message, hint="the option template names one of its templates"
                    ) from error
                raise found from error

    async def kill(self, sandbox_id: str) -> None:
        """End a sandbox; one that is not there is fine. Raises SubstrateFailed and the like."""
        async with translated("end the sandbox"):
            await AsyncSandbox.kill(sandbox_id, **self.connection)

    async def renew(self, sandbox_id: str) -> None:
        """Let it live `timeout_s` from now on. Raises SandboxGone, and the like."""
        async with translated("renew the sandbox"):
            await AsyncSandbox.set_timeout(sandbox_id, self.timeout_s, **self.connection)

    async def made_by(self, claim: str) -> list[str]:
        """The ids of the sandboxes that bear this claim."""
        found: list[str] = []
        async with translated("list its sandboxes"):
            pages = AsyncSandbox.list(query=SandboxQuery(metadata={CLAIM: claim}), **self.connection)
            for _ in range(_MAX_PAGES):
                if not pages.has_next:
                    break
                # A service that ignores the filter must not make us end the sandboxes of others.
                found += [
                    each.sandbox_id for each in await pages.next_items() if (each.metadata or {}).get(CLAIM) == claim
                ]
        return found

    async def check(self) -> None:
        """One call, which shows whether it is there and takes the key."""
        async with translated("answer"):
            await AsyncSandbox.list(limit=1, **self.connection).next_items()


@asynccontextmanager
async def translated(what: str) -> AsyncIterator[None]:
    """Turn what the SDK raises into Dutyfree's errors."""
    try:
        yield
    except (DutyfreeError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise failure(what, error) from error
