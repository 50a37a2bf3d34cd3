"""Values of background processes."""

from __future__ import annotations

from typing import Final, Literal

from dutyfree.errors import DutyfreeError
from dutyfree.model.action import Command
from dutyfree.values import dataclass

DEFAULT_KEEP_OUTPUT_BYTES: Final = 1024 * 1024
DEFAULT_CHUNK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of a background process's output. Offsets count the bytes of both streams, in their common order."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    offset: int
    """The offset of the first byte of `data`."""
    lost_bytes: int = 0
    """How many bytes before `offset` were asked for and are no longer kept."""

    @property
    def end(self) -> int:
        """The offset of the byte after `data`: where to go on reading."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A background process at one moment."""

    id: str
    """Unique in its lease."""
    command: Command
    started_at: float
    """When it was started, in seconds since 1970."""
    running: bool
    exit_code: int | None
    """None while it runs, and if a signal or an error has ended it."""
    signal: int | None
    error: DutyfreeError | None
    """Why there is no exit code and no signal: a reset, a refusal, or a failure of the infrastructure."""
    output_bytes: int
    """How much it has written so far: the offset of its next byte of output."""
    lost_bytes: int
    """How much of that, from its beginning on, is no longer kept."""
    terminal: bool = False
    """Whether it runs on a pseudo-terminal."""
    watch: bool = False
    """Whether it is a directory that is watched (`Box.start_watch`)."""
