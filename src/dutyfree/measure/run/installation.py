"""Another installation of Dutyfree as a part of a study: starts its worker, and checks everything that it answers.

A worker is trusted as little as a guest is: its lines are bounded, its answers have time limits, and its records are
read as strictly as those of a journal from elsewhere. One that breaks a rule is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from dutyfree import tables
from dutyfree.codec import ERROR
from dutyfree.codec.document import dumps, loads
from dutyfree.errors import DeadlineExceeded, InvalidRequest, LinkFailed, SubstrateUnavailable
from dutyfree.measure.design.plan import PlannedTrial
from dutyfree.measure.design.study import Arm, Study
from dutyfree.measure.results import layout
from dutyfree.measure.results.reading import JournalReading
from dutyfree.measure.results.records import Trial
from dutyfree.measure.results.study_json import study_as_json
from dutyfree.measure.run.stopwatch import MAX_NAME, MAX_REPORTED
from dutyfree.measure.run.trial import MAX_ID
from dutyfree.measure.run.worker import MAX_LINE_BYTES, PROTOCOL
from dutyfree.tables import Table

MODULE: Final = "dutyfree.measure.run.worker"
START_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 60.0
MAX_FACT: Final = 500
MAX_FACTS: Final = 100
_SPAN_KEYS: Final = ("kind", "trial", "phase", "name", "start_ns", "end_ns")
_KEPT_BYTES: Final = 4096
"""So much of what a worker prints to standard error is kept, for messages."""


@dataclass(frozen=True, slots=True)
class RemoteTrial:
    """A trial that a worker ran, with everything that is journaled about it."""

    trial: Trial
    records: tuple[Mapping[str, Any], ...]
    """Its actions and spans, in the form of the journal."""
    sandbox: str
    unenforced: list[str] | None


class Installation:
    """A worker of the interpreter `python`, while its `async with` block lasts.

    Entering raises InvalidRequest if the interpreter cannot be run, has no Dutyfree, or one that is too old or too new.
    All calls raise LinkFailed if the worker ends or breaks the protocol, and DeadlineExceeded if it does not answer in
    time; it is then killed, and cannot be used again.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._printed = b""
        self.facts: dict[str, str] = {}
        """Versions of Dutyfree and Python, and where the package is."""

    async def __aenter__(self) -> Self:
        environment = dict(os.environ)
        if self._python != sys.executable:
            # Both would name the packages of this interpreter, not of the other.
            environment.pop("PYTHONPATH", None)
            environment.pop("PYTHONHOME", None)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(self._python, "-P", "-m", MODULE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                limit=MAX_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for the study, which then ends its workers
            )
        except OSError as error:
            raise InvalidRequest(f"cannot run {self._python!r}: {error.strerror or error}") from error
        self._listener = asyncio.ensure_future(self._listen())
        try:
            self._check_hello(await self._answer(START_TIMEOUT_S))
        except LinkFailed:
            await self.close()
            raise self._refusal() from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the worker. It destroys its sandboxes first; one that does not end in time is killed."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await process.wait()
        finally:
            self._kill()
        await self._heard()

    async def _heard(self) -> None:
        """Wait a moment for the rest of what an ended worker printed."""
        if self._listener is not None:
            await asyncio.wait({self._listener}, timeout=1.0)

    async def open(self, study: Study, arm: Arm, workloads: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
        """Open the arm there. Returns its facts. `workloads` are the fingerprints of the study's workloads here.

        Raises InvalidRequest if a workload is not the same there, and otherwise what opening the arm there raised.
        """
        alone = replace(
            study, arms=(replace(arm, python=None),), grids=tuple(replace(grid, arms=()) for grid in study.grids)
        )
        await self._ask({"study": study_as_json(alone)})
        table = Table(await self._answer(timeout_s), f"the worker of {self._python}")
        with self._strictly():
            facts = _arm_facts(Table(table.required("facts", tables.table), "its facts"))
            theirs = table.required("workloads", tables.options)
        for name, ours in workloads.items():
            if theirs.get(name) != ours:
                raise InvalidRequest(
                    f"workload {name!r} is not the same in {self._python}",
                    hint="times of different actions cannot be compared: give the workload as a file for both",
                )
        return facts | self.facts

    async def run(
        self, planned: PlannedTrial, sequence: int, mark: str, names: Sequence[str], timeout_s: float
    ) -> RemoteTrial:
        """Run a trial there; `names` are the names of its actions."""
        begin = layout.begin_record(planned, sequence=sequence, late_ns=0, at_s=time.time(), evicted={})
        await self._ask({"trial": begin, "mark": mark})
        answer = await self._answer(timeout_s)
        with self._strictly():
            return read_trial(answer, begin, names)

    async def _ask(self, request: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # the missing answer shows it
            self._process.stdin.write(dumps(request).encode() + b"\n")
            await self._process.stdin.drain()

    async def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            self._kill()
            raise DeadlineExceeded(f"the worker of {self._python} did not answer within {timeout_s:g} s") from None
        except ValueError:
            self._kill()
            raise LinkFailed(f"the worker of {self._python} sent more than {MAX_LINE_BYTES} bytes") from None
        if not line.endswith(b"\n"):
            await self._heard()
            raise LinkFailed(f"the worker of {self._python} ended{self._last_words()}")
        with self._strictly():
            answer = tables.table(loads(line))
            error = ERROR.decode(answer["error"]) if "error" in answer else None
        if error is not None:
            raise error
        return answer

    @contextlib.contextmanager
    def _strictly(self) -> Any:
        """What the worker sent is not a caller's mistake: an InvalidRequest about it becomes LinkFailed."""
        try:
            yield
        except InvalidRequest as error:
            self._kill()
            raise LinkFailed(f"the worker of {self._python} broke the protocol: {error.message}") from error

    def _kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()

    def _check_hello(self, answer: Mapping[str, Any]) -> None:
        table = Table(answer, f"the worker of {self._python}")
        with self._strictly():
            protocol = table.required("protocol", tables.natural)
            self.facts = {
                name: table.required(name, tables.nonempty_text)[:MAX_FACT]
                for name in ("dutyfree", "python", "location")
            }
        if protocol != PROTOCOL:
            raise InvalidRequest(
                f"the dutyfree of {self._python}, version {self.facts['dutyfree']}, is not compatible with this one: "
                f"its workers speak protocol {protocol}, and not {PROTOCOL}",
                hint="compare versions that are closer to each other",
            )

    def _refusal(self) -> InvalidRequest:
        """Why a worker did not start, from what Python printed."""
        printed = self._printed.decode(errors="replace")
        if "No module named 'dutyfree'" in printed or "No module named dutyfree\n" in printed:
            hint = f"install it there: {self._python} -m pip install dutyfree"
            return InvalidRequest(f"{self._python} has no dutyfree", hint=hint)
        if "No module named" in printed and MODULE.rpartition(".")[0] in printed:
            return InvalidRequest(
                f"the dutyfree of {self._python} is too old to take part in another's study",
                hint="run its own `dutyfree bench`, and compare the results with `dutyfree compare`",
            )
        return InvalidRequest(f"{self._python!r} does not start a worker of dutyfree{self._last_words()}")

    def _last_words(self) -> str:
        lines = self._printed.decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    async def _listen(self) -> None:
        """Keep the end of what the worker prints."""
        assert self._process is not None
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_KEPT_BYTES):
            self._printed = (self._printed + data)[-_KEPT_BYTES:]


def _arm_facts(table: Table) -> dict[str, Any]:
    """The known facts of an arm, cut to a sane length."""
    return {
        **{name: table.required(name, tables.text)[:MAX_FACT] for name in ("substrate", "isolation")},
        "capabilities": [each[:MAX_NAME] for each in table.required("capabilities", tables.texts)[:MAX_FACTS]],
        "emulated": table.required("emulated", tables.flag),
        **({"version": table.required("version", tables.text)[:MAX_FACT]} if "version" in table.content else {}),
    }


def read_trial(answer: Mapping[str, Any], begin: dict[str, Any], names: Sequence[str]) -> RemoteTrial:
    """The trial in a worker's answer. Raises InvalidRequest for one that the trial of `begin` cannot have given."""
    table = Table(answer, "the answer")
    records = table.required("records", tables.tables)
    unenforced = table.required("unenforced", tables.unless_none(tables.texts))
    spans = [record for record in records if record.get("kind") == "span"]
    if any(
        record.get("kind") not in ("action", "span", "end") or record.get("trial") != begin["trial"]
        for record in records
    ):
        raise InvalidRequest("a record is not one of this trial")
    if len(spans) > 4 * MAX_REPORTED or any(len(str(span.get("name"))) > MAX_NAME for span in spans):
        raise InvalidRequest("it reports too many spans, or too long names")
    reading = JournalReading({begin["arm"]})
    for line, record in enumerate((begin, *records), start=1):
        reading.take(line, record)
    trials = reading.trials()
    if len(trials) != 1 or records[-1]["kind"] != "end":
        raise InvalidRequest("the trial has no end")
    (trial,) = trials
    if [action.name for action in trial.actions] != list(names[: len(trial.actions)]):
        raise InvalidRequest("it ran other actions than were asked for")
    if len(trial.cause) > layout.MAX_CAUSE or len(trial.steps) > len(spans):
        raise InvalidRequest("its cause is too long, or it has steps without a span")
    if unenforced is not None and (len(unenforced) > MAX_FACTS or any(len(each) > MAX_NAME for each in unenforced)):
        raise InvalidRequest("it reports too many limits that are not enforced")
    sandbox = Table(records[-1], "the end").required("sandbox", tables.text)
    if len(sandbox) > MAX_ID:
        raise InvalidRequest("the id of its sandbox is too long")
    # Nothing but the known fields of a span gets into the journal; those of an action were counted.
    kept = ({key: record[key] for key in _SPAN_KEYS} if record["kind"] == "span" else record for record in records[:-1])
    return RemoteTrial(trial, tuple(kept), sandbox, unenforced)


async def open_installation(
    study: Study, arm: Arm, workloads: Mapping[str, str], timeout_s: float
) -> tuple[Installation, dict[str, Any]]:
    """A worker of the arm's interpreter, with the arm open, and the arm's facts.

    Raises InvalidRequest as `Installation` does; SubstrateUnavailable if the arm cannot be opened there.
    """
    assert arm.python is not None
    worker = Installation(arm.python)
    await worker.__aenter__()
    try:
        return worker, await worker.open(study, arm, workloads, timeout_s)
    except (LinkFailed, DeadlineExceeded) as error:
        await worker.close()
        raise SubstrateUnavailable(error.message, hint=error.hint) from error
    except BaseException:
        await worker.close()
        raise
