"""The contract that every substrate keeps, in one package.

A *substrate* is a mechanism that creates sandboxes; a *sandbox* is one isolated, mutable world with one owner.
Everything that runs sandboxes, ours or a third party's, is a `Substrate`, and one conformance suite judges them all
(`dutyfree.testing`).

The life of a sandbox
---------------------
1. `Substrate.open()` is called once, before anything else. It finds out whether the substrate can work here and raises
   `SubstrateUnavailable` with a hint if it cannot. It also removes what a predecessor that was killed left behind.
2. `Substrate.create(spec)` returns a sandbox in which an action can run at once. If it raises, or is cancelled,
   nothing of the sandbox is left.
3. `run`, `stream`, `session`, `terminal` and `files` act in the sandbox, any number of them at the same time.
4. `Sandbox.reset()`, `snapshot()` and `fork()`, where the substrate can, put it back to how it was made, freeze its
   files for others to start from, and multiply it. They carry files, never processes.
5. `Sandbox.destroy()` ends every process in it and gives back all that it held. It may be called again, at any time,
   by any caller: the second call does nothing. Substrates are used through the guard (`dutyfree.substrates.guarded`),
   which gives a destruction its deadline, and carries it through when its caller is cancelled.
6. `Substrate.close()` destroys every sandbox that is still alive. If the host process is killed instead, everything is
   gone within two seconds.

Which party is at fault
-----------------------
A command that fails, is killed, or runs out of time, memory, processes or disk gives an `Observation`. Everything else
is an exception from `dutyfree.errors`, which names the party at fault. Two rules hold for every method here:

* an infrastructure failure raises a subclass of `InfraFailed` and never returns an observation;
* after `destroy`, or after the sandbox has died, every method but `destroy` raises `SandboxGone` (the calls that were
  under way when it died raise `LinkFailed` or `SubstrateFailed`).

Cancelling a call (`asyncio` cancellation) ends what it started inside the sandbox and leaves the sandbox usable.
"""

from __future__ import annotations

from dutyfree.contract.connections import (
    DEFAULT_CONNECTION_READ_BYTES,
    DEFAULT_DIAL_TIMEOUT_S,
    MAX_DATAGRAM_BYTES,
    Connection,
    Datagrams,
    Listener,
)
from dutyfree.contract.files import (
    DEFAULT_DOWNLOAD_LIMIT_BYTES,
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TRANSFER_TIMEOUT_S,
    Files,
    Watch,
)
from dutyfree.contract.sandbox import Sandbox, Snapshot
from dutyfree.contract.streams import ActionStream, Session, Terminal
from dutyfree.contract.substrate import SpanListener, Substrate

__all__ = [
    "DEFAULT_CONNECTION_READ_BYTES",
    "DEFAULT_DIAL_TIMEOUT_S",
    "MAX_DATAGRAM_BYTES",
    "Connection",
    "Datagrams",
    "Listener",
    "DEFAULT_DOWNLOAD_LIMIT_BYTES",
    "DEFAULT_FILE_TIMEOUT_S",
    "DEFAULT_READ_LIMIT_BYTES",
    "DEFAULT_TRANSFER_TIMEOUT_S",
    "Files",
    "Watch",
    "Sandbox",
    "Snapshot",
    "ActionStream",
    "Session",
    "Terminal",
    "SpanListener",
    "Substrate",
]
