"""`dutyfree bench`: measure what the substrates of this machine cost."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli import bench_against
from dutyfree.cli.bench_output import BenchProgress, condition_rows, plain_summary
from dutyfree.cli.measure_extra import measure_extra
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, seconds
from dutyfree.errors import CapacityError, InfraFailed, InvalidRequest
from dutyfree.formatting import count, plain

if TYPE_CHECKING:
    from dutyfree.cli.progress_bar import Display
    from dutyfree.measure.design.study import Grid, Study
    from dutyfree.measure.results.records import Results
    from dutyfree.measure.run.discovery import Found

_DESIGN = ("substrate", "workload", "length", "trials", "stage", "concurrency", "seed", "trial_timeout", "evict")
"""Options that cannot be combined with a study file."""


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure what the substrates of this machine cost",
        description="Run a study: trials of every arm (a substrate with its options), in random order within blocks, "
        "timed phase by phase. "
        "Without a study file and without options, it measures the substrates that it finds here for about two "
        "minutes. The results are a directory; `report`, `compare` and `project` read it.",
        epilog="example: dutyfree bench --substrate cell --substrate docker:path=exec --workload T1 --length 50 "
        "--trials 30 --output results",
    )
    parser.add_argument("study", nargs="?", type=Path, metavar="STUDY.toml", help="the study, as a file")
    _add_design(parser.add_argument_group("study, without a file"))
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="directory of the results (default: a new directory here)"
    )
    parser.add_argument("--resume", action="store_true", help="continue the study whose results are in DIR")
    parser.add_argument(
        "--time-limit", type=seconds, metavar="TIME", help=f"start no trial after this time: {DURATIONS}"
    )
    bench_against.add_options(parser)
    parser.add_argument("--quick", action="store_true", help="a few short trials of everything, to check that it works")
    parser.add_argument("--no-report", action="store_true", help="write no page; `dutyfree report` can do it later")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the summary")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(execute=execute)


def _add_design(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--substrate",
        action="append",
        metavar="NAME[:OPTION=VALUE,...]",
        help="an arm of the study; may be repeated (default: those that are found here); `image` is also an option",
    )
    group.add_argument(
        "--workload",
        action="append",
        metavar="NAME",
        help="T0 (minimal commands), T1 (code inspection), T2 (a repair with tests), a TOML file, or a recording of an "
        "agent; may be repeated (default: T0)",
    )
    group.add_argument(
        "--length",
        action="append",
        type=_length,
        metavar="N",
        help="actions, or `all` of a recording or an opening; may be repeated (default: 10, of recordings all)",
    )
    group.add_argument("--trials", type=int, metavar="N", help="of each combination (default: 5)")
    group.add_argument(
        "--stage", action="append", metavar="STAGE", help="cold, base ...; may be repeated (default: cold)"
    )
    group.add_argument("--concurrency", action="append", type=int, metavar="N", help="may be repeated (default: 1)")
    group.add_argument("--seed", type=int, metavar="N", help="seed of the order and of the trajectories (default: 1)")
    group.add_argument("--trial-timeout", type=seconds, metavar="TIME", help="time limit of one trial (default: 10m)")
    group.add_argument(
        "--evict", action="append", metavar="WHAT", help="page-cache: empty it before each cold trial (root only)"
    )


def _length(words: str) -> int | str:
    return words if words == "all" else int(words)


def execute(options: argparse.Namespace) -> int:
    """Run the study and print a summary."""
    import asyncio

    return asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> int:
    import asyncio

    from dutyfree.cli.progress_bar import Display
    from dutyfree.measure.results.directory import load_results

    async with Display(quiet=options.quiet) as display:
        study, pairs = await _study(options, display)
        path = options.output or Path(time.strftime("dutyfree-bench-%Y%m%d-%H%M%S"))
        stopped, unavailable = await _measure(study, path, options, display)
        display.state.begin("analysis")
        results = await asyncio.to_thread(load_results, path)
        analysis, page = await asyncio.to_thread(_analysed, path, results, options, display)
        found = bench_against.compared(results, pairs, options.threshold) if pairs else None
    if options.json:
        comparison = bench_against.as_json(found, options.threshold)
        print(json.dumps({**_as_json(path, results, analysis, page), "comparison": comparison}, indent=2))
    else:
        if found is None:
            print(_summary(results, analysis))
        else:
            print(plain(bench_against.text_of(found, results, pairs, options.threshold)))
        print(f"\nresults: {path}" + (f"\nreport:  {page}" if page else ""))
    for name, why in unavailable.items():
        display.say(f"warning: {name} did not take part: {why}")
    code = _exit_code(results, stopped, path, display)
    return bench_against.exit_code(found, options.threshold) if pairs and not code else code


async def _study(options: argparse.Namespace, display: Display) -> tuple[Study, Mapping[str, str]]:
    """The study of the file, of the options, or of the results to resume; and which arms are compared.

    Raises InvalidRequest.
    """
    from dutyfree.measure.design import against, defaults
    from dutyfree.measure.design.file import load_study
    from dutyfree.measure.results.directory import read_study
    from dutyfree.measure.run.gathering import with_lengths

    given = [f"--{name.replace('_', '-')}" for name in _DESIGN if getattr(options, name) is not None]
    if options.study is not None and given:
        raise InvalidRequest(f"{given[0]} and a study file exclude each other", hint="write it into the file")
    if options.resume and options.output is None:
        raise InvalidRequest("--resume needs the directory of the results", hint="name it with --output")
    if options.threshold is not None and options.against is None:
        raise InvalidRequest("--threshold is for a comparison", hint="say with --against what to compare with")
    if options.resume and options.study is None and not given:
        if options.against is not None:
            raise InvalidRequest("--resume continues the study as it was begun", hint="leave out --against")
        study, _ = read_study(options.output)
        pairs = against.pairs_of(study)
    else:
        if options.study is not None:
            study = load_study(options.study)
        else:
            study = await (_from_flags(options, display) if given or options.against else _default(display))
        study, pairs = with_lengths(study), {}
        if options.quick:
            study = defaults.quick(study)
        if options.against is not None:
            both = bench_against.against(study, options.against)
            study, pairs = both.study, both.pairs
    return study if options.time_limit is None else replace(study, time_limit_s=options.time_limit), pairs


async def _from_flags(options: argparse.Namespace, display: Display) -> Study:
    from dutyfree.measure.design import file
    from dutyfree.measure.design.study import Study

    grids = _grids(options)
    if options.substrate or options.against:
        arms = tuple(file.arm_from_words(words) for words in options.substrate or ("cell",))
    else:
        arms = tuple((await _found(display)).arms)
    return Study(
        name="from flags",
        arms=file.with_null(arms),
        grids=grids,
        seed=1 if options.seed is None else options.seed,
        evict=tuple(file.evictable(each) for each in options.evict or ()),
        trial_timeout_s=600.0 if options.trial_timeout is None else options.trial_timeout,
    )


def _grids(options: argparse.Namespace) -> tuple[Grid, ...]:
    """The grids that the flags describe. Without a length there are two: workloads with a menu, and all others."""
    from dutyfree.measure.design import file
    from dutyfree.measure.design.study import WHOLE, Grid
    from dutyfree.measure.workloads.catalogue import find

    workloads = tuple(options.workload or ("T0",))
    trials = options.trials
    if trials is None:
        trials = 5 if options.against is None else bench_against.TRIALS
    if options.length:
        asked = {tuple(file.length(each) for each in options.length): workloads}
    else:
        endless = tuple(name for name in workloads if find(name).menu)
        asked = {(10,): endless, (WHOLE,): tuple(name for name in workloads if name not in endless)}
    return tuple(
        Grid(
            trials=trials,
            workloads=names,
            lengths=lengths,
            warmths=tuple(file.stage(each) for each in options.stage or ("cold",)),
            concurrencies=tuple(options.concurrency or (1,)),
        )
        for lengths, names in asked.items()
        if names
    )


async def _default(display: Display) -> Study:
    """The substrates of this machine on all tiers; only T0 where the materials of T1 and T2 cannot be fetched."""
    import asyncio

    from dutyfree.measure.design.defaults import default_study
    from dutyfree.measure.run.gathering import gather

    found = await _found(display)
    study = default_study(found.arms, found.able)
    try:
        await asyncio.to_thread(gather, study, on_progress=lambda what: display.state.begin(what))
    except (InfraFailed, CapacityError) as error:
        display.say(f"warning: T1 and T2 are left out: {error}")
        return default_study(found.arms, ())
    return study


async def _found(display: Display) -> Found:
    from dutyfree.measure.run.discovery import find_arms

    display.state.begin("looking for substrates")
    return await find_arms(lambda name, why: display.say(f"{name} is left out: {why}"))


async def _measure(
    study: Study, path: Path, options: argparse.Namespace, display: Display
) -> tuple[str, dict[str, str]]:
    """Run the study into the directory. Returns why it ended early, and why arms are missing."""
    import asyncio

    from dutyfree.measure.results.host import host_facts
    from dutyfree.measure.results.writer import ResultsWriter
    from dutyfree.measure.run.arms import check_arms
    from dutyfree.measure.run.cold import check_evictable
    from dutyfree.measure.run.gathering import gather
    from dutyfree.measure.run.study_runner import StudyRunner

    def preparing(what: str) -> None:
        display.state.begin(what)
        if not display.is_live:
            display.say(what)

    check_arms(study.arms)
    if study.evict:
        check_evictable()
    gathered = await asyncio.to_thread(gather, study, on_progress=preparing)
    facts, fingerprints = host_facts(), gathered.fingerprints
    with ResultsWriter(path, study, host=facts, workloads=fingerprints, resume=options.resume) as writer:
        progress = BenchProgress(display)
        runner = StudyRunner(writer, gathered.workloads, on_progress=progress, fingerprints=fingerprints)

        def stop() -> None:
            display.say("stopping: the results so far are kept")
            runner.stop()

        with _Signals(stop):
            return await runner.run(), dict(runner.unavailable)


def _analysed(path: Path, results: Results, options: argparse.Namespace, display: Display) -> tuple[Any, Path | None]:
    """The analysis and the page, if the extra `measure` is installed."""
    if not results.trials:
        return None, None
    try:
        with measure_extra():
            from dutyfree.measure.report.write import write_report
            from dutyfree.measure.results.parquet import export_parquet
            from dutyfree.measure.stats.analysis import analyse

            analysis = analyse(results)
            export_parquet(path, results)
            page = None if options.no_report else write_report(results, analysis, path / "report").page
    except (InvalidRequest, OSError) as error:
        display.say(f"warning: there is no analysis: {error}")
        return None, None
    return analysis, page


def _summary(results: Results, analysis: Any) -> str:
    if analysis is None:
        return plain_summary(results)
    from dutyfree.measure.report.terminal import summary

    columns = min(120, shutil.get_terminal_size().columns)
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return plain(summary(results, analysis, width=columns, ascii_only=ascii_only))


def _as_json(path: Path, results: Results, analysis: Any, page: Path | None) -> dict[str, Any]:
    return {
        "output": str(path),
        "report": None if page is None else str(page),
        "study": results.study.name,
        "planned": results.planned,
        "trials": len(results.trials),
        "failed": sum(not trial.completed for trial in results.trials),
        "cut_short": results.cut_short,
        "unavailable": {name: facts["unavailable"] for name, facts in results.arms.items() if "unavailable" in facts},
        "conditions": condition_rows(results),
        "analysis": None if analysis is None else analysis.to_json(),
    }


def _exit_code(results: Results, stopped: str, path: Path, display: Display) -> int:
    from dutyfree.measure.design.plan import NULL
    from dutyfree.measure.run.study_runner import INTERRUPTED

    if stopped:
        left = count(results.planned - len(results.trials), "trial")
        display.say(f"{stopped}: {left} left; dutyfree bench --output {shlex.quote(str(path))} --resume goes on")
    if stopped == INTERRUPTED:
        return ExitCode.INTERRUPTED
    contenders = {arm.name for arm in results.study.arms if arm.substrate != NULL}
    if contenders and all("unavailable" in results.arms.get(name, {}) for name in contenders):
        return ExitCode.INFRASTRUCTURE
    completed = {trial.condition.arm for trial in results.trials if trial.completed}
    return ExitCode.FAILED if contenders and not contenders & completed else ExitCode.DONE


class _Signals:
    """While its block lasts, the first Ctrl-C or TERM calls `stop`; the second ends the process as usual."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._first)

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _first(self) -> None:
        self._restore()
        self._stop()

    def _restore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)
