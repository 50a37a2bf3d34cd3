"""Writing results as they come: one directory, one writer, and nothing promised that is not on the disk."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dutyfree import __version__
from dutyfree.codec import BILL
from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.measure.design.plan import PlannedTrial, plan, size
from dutyfree.measure.design.study import Study
from dutyfree.measure.results import layout
from dutyfree.measure.results.directory import is_compact, journal_records, load_results, read_study
from dutyfree.measure.results.records import ActionRecord, Trial
from dutyfree.measure.results.study_json import study_as_json
from dutyfree.model import Bill, Phase
from dutyfree.publish import publish, sync_directory
from dutyfree.trace import JournalWriter

_CHANGEABLE = ("time_limit_s",)
"""What may differ when a study is resumed: it decides how many trials are run, not which."""

LATEST_S = 0.25
"""The longest time until an action is in the journal."""
_PART = ".dutyfree-part"
"""The suffix of a file that is being written; such a file, if found, was left by a killed process."""


class Unwritable(CapacityError):
    """Results cannot be written, for example because the disk is full. Results so far stay valid."""

    def __init__(self, path: Path, error: OSError) -> None:
        hint = "free some space, and continue with --resume: no trial that had ended is lost"
        super().__init__(f"cannot write to {path}: {error.strerror or error}", hint=hint)


class ResultsWriter:
    """The results of one study in one directory, while its `with` block lasts.

    A new directory is made; with `resume`, results in an existing one are continued. Entering raises InvalidRequest for
    a directory that cannot be made or that holds something else: other files, another study, the same study with other
    workloads, or one of another machine; CapacityError while another process writes to it. All methods raise Unwritable
    if the disk refuses a write. A study that fails before its first trial begins leaves nothing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        study: Study,
        *,
        host: Mapping[str, Any],
        workloads: Mapping[str, str],
        resume: bool = False,
    ) -> None:
        self.path = Path(path)
        self.study = study
        self.earlier: tuple[Trial, ...] = ()
        """Trials that an earlier run finished."""
        self._host = dict(host)
        self._workloads = dict(workloads)
        self._resume = resume
        self._journal: JournalWriter | None = None
        self._sequence = 0
        self._pending: list[tuple[int, int, ActionRecord]] = []
        self._due_s = 0.0
        self._is_ours = False
        """Whether this writer made the directory."""
        self._is_empty = False
        """Whether the directory holds no trial."""

    def __enter__(self) -> Self:
        try:
            self._check_directory()
            self._is_ours = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._journal = JournalWriter(self.path / layout.JOURNAL)
            try:
                self._open()
            except BaseException as error:
                self._leave(error)
                raise
        except OSError as error:
            raise InvalidRequest(f"{self.path} cannot hold results: {error.strerror or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    @property
    def done(self) -> frozenset[int]:
        """The numbers of the trials that earlier runs finished."""
        return frozenset(trial.number for trial in self.earlier)

    def next_sequence(self) -> int:
        """The position of the trial that begins now in the order in which trials begin."""
        self._sequence += 1
        return self._sequence - 1

    def begin(self, planned: PlannedTrial, *, sequence: int, late_ns: int, evicted: Mapping[str, Any]) -> None:
        """A trial begins."""
        self._is_empty = False
        at_s = time.time()
        self._write(layout.begin_record(planned, sequence=sequence, late_ns=late_ns, at_s=at_s, evicted=evicted))

    def action(self, trial: int, start_ns: int, action: ActionRecord) -> None:
        """An action of a trial returned its observation. It is written within `LATEST_S`, or with the next record.

        Not at once, because a write takes longer than an action of the null substrate.
        """
        self._pending.append((trial, start_ns, action))
        if time.monotonic() >= self._due_s:
            self._write()

    def span(self, trial: int, phase: Phase, name: str, start_ns: int, end_ns: int) -> None:
        """A span of a trial's sandbox ended."""
        self._write(layout.span_record(trial, phase, name, start_ns, end_ns))

    def end(self, trial: Trial, *, sandbox: str, sync: bool = True) -> None:
        """A trial ended; with `sync`, this and all earlier records are on the disk when this returns."""
        self._write(layout.end_record(trial, sandbox), sync=sync)

    def sync(self) -> None:
        """Wait until all records are on the disk."""
        self._write(sync=True)

    def records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Actions and spans of a trial that another process ran, in the form of the journal."""
        self._write(*records)

    def reference(self, block: int, spawn_ns: int) -> None:
        """How long a bare process took just before this block."""
        self._write(layout.reference_record(block, spawn_ns))

    def arm(self, name: str, facts: Mapping[str, Any]) -> None:
        """The facts of an arm; they replace earlier ones."""
        self._write({"kind": "arm", "arm": name, "facts": dict(facts)})

    def wave(self, block: int, arm: str, *, rate_per_s: float, service_ns: int, basis: str) -> None:
        """A wave begins, with its arrival rate and the service time from which the rate was computed."""
        record = {"kind": "wave", "block": block, "arm": arm, "rate_per_s": rate_per_s, "service_ns": service_ns}
        self._write(record | {"basis": basis}, sync=True)

    def bill(self, bill: Bill) -> None:
        """The bill of a live run; it replaces an earlier one."""
        try:
            _publish_json(self.path / layout.BILL, BILL.encode(bill))
        except OSError as error:
            raise Unwritable(self.path, error) from error

    def stop(self, reason: str) -> None:
        """The run ends; `reason` is empty if no trial is left."""
        self._write({"kind": "stop", "at_s": round(time.time(), 3), "reason": reason}, sync=True)

    def _write(self, *more: Mapping[str, Any], sync: bool = False) -> None:
        """Write all pending actions, and then `more`."""
        assert self._journal is not None, "the writer is used in its `with` block"
        try:
            self._journal.extend((*(layout.action_record(*each) for each in self._pending), *more), sync=sync)
        except OSError as error:
            raise Unwritable(self.path, error) from error
        self._pending.clear()
        self._due_s = time.monotonic() + LATEST_S

    def _leave(self, error: BaseException | None) -> None:
        """Close the journal. Remove everything if the study failed before its first trial."""
        assert self._journal is not None, "the writer is used in its `with` block"
        if error is not None and self._is_empty:
            with contextlib.suppress(OSError):
                # Under the lock, and study.json first: without it, the directory holds no results.
                for name in (layout.STUDY, layout.BILL, layout.HOST, layout.JOURNAL):
                    (self.path / name).unlink(missing_ok=True)
                if self._is_ours:
                    self.path.rmdir()
        self._journal.close()

    def _check_directory(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InvalidRequest(f"{self.path} is not a directory")
        names = {each.name for each in self.path.iterdir()} if self.path.exists() else set()
        found = {name for name in names if not name.endswith(_PART)}
        if layout.STUDY in found:
            if not self._resume:
                raise InvalidRequest(
                    f"{self.path} holds results already", hint="continue them (--resume), or name another directory"
                )
            if layout.JOURNAL not in found and layout.PACKED_JOURNAL in found:
                raise InvalidRequest(
                    f"{self.path} is packed", hint=f"unpack {layout.PACKED_JOURNAL} with gunzip to continue"
                )
            if is_compact(self.path):
                raise InvalidRequest(
                    f"{self.path} is a compact copy of results, which has no journal",
                    hint="resume the study in the directory that the copy was made from",
                )
        elif strangers := sorted(found - {layout.HOST, layout.JOURNAL}):
            raise InvalidRequest(f"{self.path} holds something else: {strangers[0]!r}", hint="name another directory")
        elif self._resume:
            raise InvalidRequest(f"{self.path} holds no results to continue", hint="leave out --resume")

    def _open(self) -> None:
        if (self.path / layout.STUDY).exists():
            self._continue()
        elif any(record["kind"] == "trial" for _, record in journal_records(self.path)):
            raise InvalidRequest(f"{self.path} holds trials, but {layout.STUDY} is missing")
        else:
            self._is_empty = True
            self._begin()

    def _begin(self) -> None:
        _publish_json(self.path / layout.HOST, self._host)
        # Last: a directory holds results as soon as, and only if, this file is in it.
        _publish_json(
            self.path / layout.STUDY,
            {
                "format": layout.FORMAT,
                "schema": layout.SCHEMA,
                "dutyfree": __version__,
                "begun_s": round(time.time(), 3),
                "planned": size(plan(self.study)),
                "workloads": self._workloads,
                "study": study_as_json(self.study),
            },
        )
        self._write({"kind": "run", "at_s": round(time.time(), 3), "resumed": False}, sync=True)
        sync_directory(self.path)

    def _continue(self) -> None:
        kept, facts = read_study(self.path)
        for name, ours in study_as_json(self.study).items():
            if name not in _CHANGEABLE and ours != study_as_json(kept)[name]:
                raise InvalidRequest(
                    f"{self.path} holds another study: its {name} differs", hint="name another directory"
                )
        for name, fingerprint in self._workloads.items():
            if facts["workloads"].get(name) != fingerprint:
                raise InvalidRequest(f"the workload {name!r} has changed since {self.path} was begun")
        results = load_results(self.path)
        for name, value in self._host.items():
            if results.host.get(name) != value:
                raise InvalidRequest(
                    f"{self.path} was measured elsewhere: {name} was {results.host.get(name)!r}, and is {value!r}",
                    hint="one study holds numbers of one machine only: name another directory",
                )
        self.earlier = results.trials
        self._sequence = 1 + max((trial.sequence for trial in results.trials), default=-1)
        self._write({"kind": "run", "at_s": round(time.time(), 3), "resumed": True}, sync=True)


def _publish_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    publish(path, text.encode(), draft=path.with_name(f".{path.name}{_PART}"), sync=True)
