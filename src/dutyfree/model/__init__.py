"""Frozen values: they check and format themselves, and do nothing else."""

from dutyfree.model.action import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Action, Command
from dutyfree.model.bill import Bill, FailureCount, OtherSubstrate, PhaseTime
from dutyfree.model.cache import Cache, SavedCache
from dutyfree.model.egress import Egress, EgressRecord
from dutyfree.model.file import FileInfo, FileKind
from dutyfree.model.file_event import FileEvent, FileEventKind
from dutyfree.model.image import Image
from dutyfree.model.isolation import Isolation
from dutyfree.model.limits import Network, Resources
from dutyfree.model.metrics import Metrics
from dutyfree.model.mount import Mount
from dutyfree.model.observation import Chunk, Observation, Timing
from dutyfree.model.path import ActionPath
from dutyfree.model.phase import Phase
from dutyfree.model.port import ListeningPort
from dutyfree.model.process import DEFAULT_CHUNK_BYTES, DEFAULT_KEEP_OUTPUT_BYTES, OutputChunk, ProcessInfo
from dutyfree.model.recipe import FileInput, GitInput, Recipe, Stage
from dutyfree.model.span import Span
from dutyfree.model.spec import Capability, SandboxSpec, Unenforced, Writes
from dutyfree.model.usage import Usage
from dutyfree.model.user import User

__all__ = [
    "DEFAULT_CHUNK_BYTES",
    "DEFAULT_KEEP_OUTPUT_BYTES",
    "DEFAULT_OUTPUT_LIMIT_BYTES",
    "DEFAULT_TIMEOUT_S",
    "Action",
    "ActionPath",
    "Bill",
    "Cache",
    "Capability",
    "Chunk",
    "Command",
    "FailureCount",
    "FileEvent",
    "FileEventKind",
    "Egress",
    "EgressRecord",
    "FileInfo",
    "FileInput",
    "FileKind",
    "GitInput",
    "Image",
    "Isolation",
    "ListeningPort",
    "Mount",
    "Metrics",
    "Network",
    "Observation",
    "OtherSubstrate",
    "OutputChunk",
    "Phase",
    "PhaseTime",
    "ProcessInfo",
    "Recipe",
    "Resources",
    "SandboxSpec",
    "SavedCache",
    "Span",
    "Stage",
    "Timing",
    "Unenforced",
    "Writes",
    "Usage",
    "User",
]
