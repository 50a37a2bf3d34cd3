"""A small copy of results: everything that numbers are made from, without the journal.

The copy loses no precision: `load_results` gives equal results for the copy and for the original. It leaves out what
no number is made from: the spans, the starts of actions, seeds, times of day, and ids of sandboxes.

The file is xz: one line of JSON, then columns of whole numbers. docs/reference/results.md describes it. Three choices
make it small, where most of the size is the random last digits of durations:

- A sum is stored as the difference from its parts, which is zero or small.
- Durations of the same action on the same arm stand together, since they are alike.
- A column is stored byte by byte (first the lowest byte of every number, then the next), so that xz can compress the
  high bytes, which are alike, apart from the low bytes, which are noise.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from array import array
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Condition, Warmth
from dutyfree.measure.results import layout
from dutyfree.measure.results.reading import check_trial
from dutyfree.measure.results.records import ActionRecord, Results, Trial, TrialOutcome
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase
from dutyfree.tables import flag, natural, positive_whole
from dutyfree.tables import nonempty_text as text
from dutyfree.tables import table as json_object
from dutyfree.tables import text as any_text

FORMAT: Final = "dutyfree-compact"
VERSION: Final = 1
MAX_UNPACKED_BYTES: Final = 1024**3
_WIDTH: Final = 8
"""Bytes of a number in a column."""
_PHASES: Final = {str(phase): phase for phase in Phase}
_BEFORE_ACTIONS: Final = (Phase.QUEUE, Phase.PLACE, Phase.CREATE, Phase.READY, Phase.SETUP)
_OF_TRIALS: Final = (
    "trial",
    "sequence",
    "block",
    "late_ns",
    "condition",
    "ending",
    "trajectory",
    "step_names",
    "first_observation_rest_ns",
    *(f"{phase}_rest_ns" for phase in Phase),
)
_OF_ACTIONS: Final = ("execute_ns", "overhead_ns", "dispatch_surplus_ns")
_STEPS: Final = "step_ns"
_NEVER_NEGATIVE: Final = (
    "condition",
    "ending",
    "trajectory",
    "step_names",
    "trial",
    "sequence",
    "block",
    "late_ns",
    "execute_ns",
    "overhead_ns",
    _STEPS,
)

T = TypeVar("T", bound=Hashable)


class _Index(Generic[T]):
    """Numbers distinct values in the order in which they first occur."""

    def __init__(self) -> None:
        self.numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def write_compact(results: Results, source: Path, directory: Path) -> Path:
    """Write a small copy of `results`, which were read from `source`, to a new or empty directory.

    Raises InvalidRequest if the directory holds something already, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InvalidRequest(f"{directory} is not empty", hint="name a new directory for the small copy")
        path = directory / layout.COMPACT
        path.write_bytes(pack(results))
        shutil.copyfile(source / layout.HOST, directory / layout.HOST)
        if results.bill is not None:
            shutil.copyfile(source / layout.BILL, directory / layout.BILL)
        # Last: a directory holds results if and only if this file is in it.
        shutil.copyfile(source / layout.STUDY, directory / layout.STUDY)
    except OSError as error:
        raise InvalidRequest(f"cannot write to {directory}: {error.strerror or error}") from error
    return path


def pack(results: Results) -> bytes:
    """The content of the file. Equal results give equal bytes."""
    conditions, endings = _Index[tuple[Any, ...]](), _Index[tuple[Any, ...]]()
    actions, trajectories = _Index[tuple[str, str]](), _Index[tuple[int, ...]]()
    step_names = _Index[tuple[str, ...]]()
    columns: dict[str, list[int]] = {name: [] for name in (*_OF_TRIALS, *_OF_ACTIONS, _STEPS)}
    trials = results.trials
    trajectory_of = [tuple(actions.number((each.name, str(each.kind))) for each in trial.actions) for trial in trials]
    for trial, trajectory in zip(trials, trajectory_of, strict=True):
        condition = trial.condition
        failed_phase = None if trial.failed_phase is None else str(trial.failed_phase)
        first_ns, before_ns = trial.first_observation_ns, _before_first_observation_ns(trial.by_phase, trial.actions)
        row = {
            "trial": trial.number,
            "sequence": trial.sequence,
            "block": trial.block,
            "late_ns": trial.late_ns,
            "condition": conditions.number(
                (condition.arm, condition.workload, condition.length, str(condition.warmth), condition.concurrency)
            ),
            "ending": endings.number((str(trial.outcome), failed_phase, trial.cause, first_ns is not None)),
            "trajectory": trajectories.number(trajectory),
            "step_names": step_names.number(tuple(trial.steps)),
            "first_observation_rest_ns": 0 if first_ns is None else first_ns - before_ns,
        }
        parts_ns = _parts_ns(trial.actions, trial.steps)
        row |= {f"{phase}_rest_ns": trial.by_phase[phase] - parts_ns[phase] for phase in Phase}
        for name, value in row.items():
            columns[name].append(value)
    for at, position in _action_order([trial.condition.arm for trial in trials], trajectory_of):
        action = trials[at].actions[position]
        columns["execute_ns"].append(action.execute_ns)
        columns["overhead_ns"].append(action.tax_ns)
        columns["dispatch_surplus_ns"].append(action.dispatch_ns - action.tax_ns // 2)
    columns[_STEPS] = [trials[at].steps[name] for name, at in _step_order([tuple(trial.steps) for trial in trials])]
    header = {
        "format": FORMAT,
        "version": VERSION,
        "cut_short": results.cut_short,
        "arms": results.arms,
        "references": list(results.references.items()),
        "conditions": list(conditions.numbers),
        "endings": list(endings.numbers),
        "actions": list(actions.numbers),
        "trajectories": list(trajectories.numbers),
        "step_names": list(step_names.numbers),
        "columns": {name: len(values) for name, values in columns.items()},
    }
    line = json.dumps(header, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    return lzma.compress(line + b"".join(map(_planes, columns.values())), preset=9 | lzma.PRESET_EXTREME)


@dataclass(frozen=True, slots=True)
class CompactResults:
    """What the file holds."""

    arms: Mapping[str, Mapping[str, Any]]
    trials: tuple[Trial, ...]
    cut_short: str
    references: Mapping[int, int]


def read_compact(path: Path, arms: Collection[str]) -> CompactResults:
    """What `write_compact` wrote; `arms` are the names of the study's arms.

    Raises InvalidRequest, which names the file, for one that is damaged, or that holds what no study can have measured.
    """
    try:
        line, _, rest = _unpacked(path).partition(b"\n")
        header = json.loads(line)
        if header["format"] != FORMAT:
            raise InvalidRequest(f"{path} is not a compact copy of results")
        if header["version"] != VERSION:
            found = header["version"]
            raise InvalidRequest(f"{path} is of version {found!r:.20}; this Dutyfree reads version {VERSION}")
        columns = _columns(header["columns"], rest)
        trials = tuple(_trials(header, columns))
        facts = {arm: json_object(each) for arm, each in json_object(header["arms"]).items()}
        cut_short = any_text(header["cut_short"])
        references = {natural(block): positive_whole(spawn_ns) for block, spawn_ns in header.get("references", ())}
    except InvalidRequest as error:
        raise error if str(path) in error.message else InvalidRequest(f"{path}: {error.message}") from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InvalidRequest(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if len({trial.number for trial in trials}) < len(trials):
        raise InvalidRequest(f"{path} holds a trial twice")
    for trial in trials:
        check_trial(trial, str(path))
        if trial.condition.arm not in arms:
            raise InvalidRequest(f"{path}: the study has no arm {trial.condition.arm!r:.80}")
    return CompactResults(facts, trials, cut_short, references)


def _trials(header: Mapping[str, Any], columns: Mapping[str, Sequence[int]]) -> Iterator[Trial]:
    """The trials in their order. Raises ValueError, TypeError, LookupError for what cannot be."""
    conditions = [
        Condition(text(arm), text(workload), natural(length), Warmth(stage), natural(concurrency))
        for arm, workload, length, stage, concurrency in header["conditions"]
    ]
    endings = [
        (TrialOutcome(outcome), None if phase is None else Phase(phase), any_text(cause), flag(is_observed))
        for outcome, phase, cause, is_observed in header["endings"]
    ]
    kinds = [(any_text(name), ActionKind(kind)) for name, kind in header["actions"]]
    trajectories = [[natural(each) for each in trajectory] for trajectory in header["trajectories"]]
    condition_of = [conditions[each] for each in columns["condition"]]
    trajectory_of = [trajectories[each] for each in columns["trajectory"]]
    steps_of = [tuple(map(any_text, header["step_names"][each])) for each in columns["step_names"]]
    if sum(map(len, trajectory_of)) != len(columns["execute_ns"]) or sum(map(len, steps_of)) != len(columns[_STEPS]):
        raise ValueError("the columns of actions and steps do not fit the trials")
    actions: list[dict[int, ActionRecord]] = [{} for _ in trajectory_of]
    order = _action_order([condition.arm for condition in condition_of], trajectory_of)
    for (at, position), *times in zip(order, *(columns[name] for name in _OF_ACTIONS), strict=True):
        execute_ns, overhead_ns, rest_ns = times
        dispatch_ns = overhead_ns // 2 + rest_ns
        name, kind = kinds[trajectory_of[at][position]]
        actions[at][position] = ActionRecord(name, kind, dispatch_ns, execute_ns, overhead_ns - dispatch_ns)
    steps: list[dict[str, int]] = [dict.fromkeys(names, 0) for names in steps_of]
    for (name, at), spent_ns in zip(_step_order(steps_of), columns[_STEPS], strict=True):
        steps[at][name] = spent_ns
    for at, number in enumerate(columns["trial"]):
        own = tuple(actions[at][position] for position in range(len(trajectory_of[at])))
        parts_ns = _parts_ns(own, steps[at])
        by_phase = {phase: columns[f"{phase}_rest_ns"][at] + parts_ns[phase] for phase in Phase}
        first_ns = columns["first_observation_rest_ns"][at] + _before_first_observation_ns(by_phase, own)
        if min(*by_phase.values(), first_ns, *(min(each.dispatch_ns, each.observe_ns) for each in own)) < 0:
            raise ValueError(f"a duration of trial {number} is negative")
        outcome, failed_phase, cause, is_observed = endings[columns["ending"][at]]
        yield Trial(
            number=number,
            sequence=columns["sequence"][at],
            block=columns["block"][at],
            condition=condition_of[at],
            outcome=outcome,
            wall_ns=sum(by_phase.values()),
            first_observation_ns=first_ns if is_observed else None,
            by_phase=by_phase,
            steps=steps[at],
            actions=own,
            late_ns=columns["late_ns"][at],
            failed_phase=failed_phase,
            cause=cause,
        )


def _action_order(arms: Sequence[str], trajectories: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The order of actions in their columns, each as the place of its trial and its place in the trial.

    `arms` and `trajectories` (the numbers of its actions) are those of each trial.
    """
    keys = sorted(
        (arm, action, at, position)
        for at, (arm, trajectory) in enumerate(zip(arms, trajectories, strict=True))
        for position, action in enumerate(trajectory)
    )
    return [(at, position) for _, _, at, position in keys]


def _step_order(names: Sequence[Sequence[str]]) -> list[tuple[str, int]]:
    """The order of steps in their column, each as its name and the place of its trial; `names` by trial."""
    return sorted((name, at) for at, own in enumerate(names) for name in own)


def _parts_ns(actions: Sequence[ActionRecord], steps: Mapping[str, int]) -> dict[Phase, int]:
    """How much of each phase its actions and steps account for; a phase is stored as the difference from this."""
    parts_ns = dict.fromkeys(Phase, 0)
    for name, spent_ns in steps.items():
        phase = _PHASES.get(name.split("/")[0])
        if phase is not None:
            parts_ns[phase] += spent_ns
    parts_ns[Phase.DISPATCH] += sum(each.dispatch_ns for each in actions)
    parts_ns[Phase.EXECUTE] += sum(each.execute_ns for each in actions)
    parts_ns[Phase.OBSERVE] += sum(each.observe_ns for each in actions)
    return parts_ns


def _before_first_observation_ns(by_phase: Mapping[Phase, int], actions: Sequence[ActionRecord]) -> int:
    """The time of the first observation, apart from what no phase accounts for."""
    first_ns = actions[0].latency_ns if actions else 0
    return sum(by_phase[phase] for phase in _BEFORE_ACTIONS) + first_ns


def _planes(values: Sequence[int]) -> bytes:
    """A column as bytes: the lowest byte of every number, then the next byte of every number, and so on."""
    numbers = array("q", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    data = numbers.tobytes()
    return b"".join(data[at::_WIDTH] for at in range(_WIDTH))


def _columns(counts: Any, data: bytes) -> dict[str, array[int]]:
    """The columns by name. Raises ValueError if there are others than expected, or their sizes do not fit."""
    sizes = {name: natural(count) for name, count in json_object(counts).items()}
    if list(sizes) != [*_OF_TRIALS, *_OF_ACTIONS, _STEPS] or sum(sizes.values()) * _WIDTH != len(data):
        raise ValueError("these are not the columns of trials")
    if len({sizes[name] for name in _OF_TRIALS}) > 1 or len({sizes[name] for name in _OF_ACTIONS}) > 1:
        raise ValueError("columns differ in length")
    columns, begin = {}, 0
    for name, count in sizes.items():
        mixed = bytearray(count * _WIDTH)
        for at in range(_WIDTH):
            mixed[at::_WIDTH] = data[begin : begin + count]
            begin += count
        columns[name] = array("q", bytes(mixed))
        if sys.byteorder == "big":
            columns[name].byteswap()
        if name in _NEVER_NEGATIVE and count and min(columns[name]) < 0:
            raise ValueError(f"a number in {name} is negative")
    return columns


def _unpacked(path: Path) -> bytes:
    """Raises InvalidRequest for a file that is larger, unpacked, than any study: it was made to fill the memory."""
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    data = unpacker.decompress(path.read_bytes(), MAX_UNPACKED_BYTES)
    if not unpacker.eof:
        is_long = len(data) >= MAX_UNPACKED_BYTES
        raise InvalidRequest(f"{path} is {'too long' if is_long else 'cut off'}")
    return data
