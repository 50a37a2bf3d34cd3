"""Frozen values: they check and format themselves, and do nothing else."""

from dutyfree.model.action import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Action, Command
from dutyfree.model.file import FileInfo, FileKind
from dutyfree.model.image import Image
from dutyfree.model.isolation import Isolation
from dutyfree.model.limits import Network, Resources
from dutyfree.model.observation import Chunk, Observation, Timing
from dutyfree.model.path import ActionPath
from dutyfree.model.phase import Phase
from dutyfree.model.recipe import FileInput, GitInput, Recipe, Stage
from dutyfree.model.span import Span
from dutyfree.model.spec import Capability, SandboxSpec, Unenforced, Writes
from dutyfree.model.usage import Usage

__all__ = [
    "DEFAULT_OUTPUT_LIMIT_BYTES",
    "DEFAULT_TIMEOUT_S",
    "Action",
    "ActionPath",
    "Capability",
    "Chunk",
    "Command",
    "FileInfo",
    "FileInput",
    "FileKind",
    "GitInput",
    "Image",
    "Isolation",
    "Network",
    "Observation",
    "Phase",
    "Recipe",
    "Resources",
    "SandboxSpec",
    "Span",
    "Stage",
    "Timing",
    "Unenforced",
    "Writes",
    "Usage",
]
