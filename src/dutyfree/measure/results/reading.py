"""Reads trials from the records of a journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.file import stage
from dutyfree.measure.design.study import Condition
from dutyfree.measure.results import layout
from dutyfree.measure.results.records import ActionRecord, Trial, TrialOutcome
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase
from dutyfree.tables import Table

T = TypeVar("T")

_KINDS = {str(each): each for each in ActionKind}
_PHASES = {str(each): each for each in Phase}
_OUTCOMES = {str(each): each for each in TrialOutcome}


@dataclass(slots=True)
class _Begun:
    """A trial that has begun and not ended."""

    sequence: int
    block: int
    condition: Condition
    late_ns: int
    actions: list[ActionRecord] = field(default_factory=list)


class JournalReading:
    """Takes records in order. Raises InvalidRequest, naming the line, for a record that contradicts others."""

    def __init__(self, arms: Collection[str]) -> None:
        self._known_arms = arms
        self._begun: dict[int, _Begun] = {}
        self._ended: dict[int, Trial] = {}
        self.arms: dict[str, Mapping[str, Any]] = {}
        """The latest facts of each arm."""
        self.references: dict[int, int] = {}
        """By block: how long a bare process took."""
        self.stopped: str | None = None
        """Why the last run stopped; empty if it was complete; None if it is still running or was killed."""

    def trials(self) -> tuple[Trial, ...]:
        """The trials that have ended, in the order in which they began."""
        return tuple(sorted(self._ended.values(), key=lambda trial: trial.sequence))

    def take(self, line: int, record: dict[str, Any]) -> None:
        """Take the next record."""
        match record:
            # By far the most frequent record, and therefore handled without a Table, which is slow.
            case {"kind": "action", "trial": int(trial), "name": str(name), "of": str(kind), "start_ns": int()} if (
                len(record) == 6 and 0 <= record["start_ns"] < 2**63
            ):
                self._action(line, trial, name, kind, record.get("parts_ns"))
            case {"kind": "span"}:
                self._span(Table(record, f"{layout.JOURNAL}, line {line}"))
            case {"kind": "trial"}:
                self._begin(Table(record, f"{layout.JOURNAL}, line {line}"))
            case {"kind": "end"}:
                self._end(Table(record, f"{layout.JOURNAL}, line {line}"))
            case {"kind": "arm", "arm": str(arm), "facts": dict(facts)}:
                self.arms[arm] = facts
            case {"kind": "reference", "block": int(block), "spawn_ns": int(spawn_ns)} if (
                0 <= block < 2**63 and 0 < spawn_ns < 2**63
            ):
                self.references[block] = spawn_ns
            case {"kind": "wave"}:
                pass
            case {"kind": "run"}:
                self.stopped = None
            case {"kind": "stop", "reason": str(reason)}:
                self.stopped = reason
            case _:
                raise InvalidRequest(f"{layout.JOURNAL}, line {line}: not a record of a study")

    def _begin(self, table: Table) -> None:
        number = table.required("trial", tables.natural)
        arm = table.required("arm", tables.nonempty_text)
        if arm not in self._known_arms:
            raise InvalidRequest(f"{table.where}: the study has no arm {arm!r:.80}")
        if number in self._ended:
            raise InvalidRequest(f"{table.where}: trial {number} had ended already")
        condition = Condition(
            arm=arm,
            workload=table.required("workload", tables.nonempty_text),
            length=table.required("length", tables.natural),
            warmth=table.required("stage", stage),
            concurrency=table.required("concurrency", tables.natural),
        )
        # A trial that began before and never ended was running when its study was killed; it begins again here.
        self._begun[number] = _Begun(
            table.required("sequence", tables.natural),
            table.required("block", tables.natural),
            condition,
            table.required("late_ns", tables.natural),
        )

    def _action(self, line: int, trial: int, name: str, kind: str, parts_ns: Any) -> None:
        begun = self._begun.get(trial)
        match parts_ns:
            case [int(dispatch_ns), int(execute_ns), int(observe_ns)] if (
                min(parts_ns) >= 0 and kind in _KINDS and begun
            ):
                begun.actions.append(ActionRecord(name, _KINDS[kind], dispatch_ns, execute_ns, observe_ns))
            case _:
                raise InvalidRequest(f"{layout.JOURNAL}, line {line}: this is not an action of a trial that has begun")

    def _span(self, table: Table) -> None:
        number, _, _ = (
            table.required("trial", tables.natural),
            table.required("phase", _phase),
            table.required("name", tables.text),
        )
        if number not in self._begun or table.required("end_ns", tables.natural) < table.required(
            "start_ns", tables.natural
        ):
            raise InvalidRequest(f"{table.where}: this is not a span of a trial that has begun")

    def _end(self, table: Table) -> None:
        number = table.required("trial", tables.natural)
        begun = self._begun.pop(number, None)
        if begun is None:
            raise InvalidRequest(f"{table.where}: trial {number} ends but had not begun")
        trial = Trial(
            number=number,
            sequence=begun.sequence,
            block=begun.block,
            condition=begun.condition,
            outcome=table.required("outcome", _outcome),
            wall_ns=table.required("wall_ns", tables.natural),
            first_observation_ns=table.required("first_observation_ns", tables.unless_none(tables.natural)),
            by_phase=table.required("by_phase", _by_phase),
            steps=table.required("steps", _steps),
            actions=tuple(begun.actions),
            late_ns=begun.late_ns,
            failed_phase=table.required("failed_phase", tables.unless_none(_phase)),
            cause=table.required("cause", tables.text),
        )
        check_trial(trial, table.where)
        self._ended[number] = trial


def check_trial(trial: Trial, where: str) -> None:
    """Raise InvalidRequest for an impossible trial: parts that do not fit the whole, or missing actions."""
    if sum(trial.by_phase.values()) != trial.wall_ns:
        raise InvalidRequest(f"{where}: the phases of trial {trial.number} do not add up to its wall time")
    if sum(action.latency_ns for action in trial.actions) > trial.wall_ns:
        raise InvalidRequest(f"{where}: the actions of trial {trial.number} take longer than the trial")
    if (trial.first_observation_ns or 0) > trial.wall_ns:
        raise InvalidRequest(f"{where}: the first observation of trial {trial.number} is after its end")
    if trial.completed and (len(trial.actions) != trial.condition.length or trial.first_observation_ns is None):
        done, expected = len(trial.actions), trial.condition.length
        raise InvalidRequest(f"{where}: trial {trial.number} completed with {done} of {expected} actions")


def _phase(value: Any) -> Phase:
    return _chosen(_PHASES, value, "phase")


def _outcome(value: Any) -> TrialOutcome:
    return _chosen(_OUTCOMES, value, "outcome")


def _chosen(known: Mapping[str, T], value: Any, what: str) -> T:
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(f"{value!r:.80} is no {what}")
    return known[value]


def _by_phase(value: Any) -> dict[Phase, int]:
    """Every phase, those that took no time included."""
    spent = {_phase(name): tables.natural(each) for name, each in tables.table(value).items()}
    return dict.fromkeys(Phase, 0) | spent


def _steps(value: Any) -> dict[str, int]:
    return {name: tables.natural(each) for name, each in tables.table(value).items()}
