"""`dutyfree doctor`: which substrates work on this machine, found by trying each."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, seconds
from dutyfree.errors import DutyfreeError, SubstrateFailed, UnenforcedWarning

if TYPE_CHECKING:
    from dutyfree.cli.progress_bar import Display
    from dutyfree.client.local import LocalHost
    from dutyfree.model import Image, Unenforced

PROBE_TIMEOUT_S = 60.0
SLOW = ("microvm", "vm")
"""Machines, which are tried when they are asked for: one that is emulated boots for half a minute or longer, and the
first `vm` of a user builds the disk that all start from, for minutes."""
SLOW_TIMEOUT_S = 900.0
REMOTE = "hosted"
REMOTE_VARIABLES = ("E2B_API_KEY", "E2B_API_URL")
"""The substrate of another machine, which may cost money: tried when it is asked for, or one of these is set."""
OPENING = {"vm": "opening it; the first time, a disk is built, which takes minutes"}
DEFAULT_SUBSTRATE = "cell"


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="test which substrates work here, and say what is missing",
        description="Try each substrate: create a sandbox and run a command in it. An engine without an image to start "
        f"from (DUTYFREE_IMAGE names one) gets an empty image. {' and '.join(SLOW)}, which may take minutes, are tried "
        f"when they are named, or with --all; so is {REMOTE}, or when {' or '.join(REMOTE_VARIABLES)} is set. The exit "
        f"code is 0 if the named substrates (by default: {DEFAULT_SUBSTRATE}) work, and 1 if one of them does not.",
        epilog="example: dutyfree doctor cell docker",
    )
    parser.add_argument(
        "substrate", nargs="*", metavar="SUBSTRATE", help=f"only these (default: all but {', '.join((*SLOW, REMOTE))})"
    )
    parser.add_argument("--all", action="store_true", help=f"try {', '.join((*SLOW, REMOTE))}, too")
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help=f"for each substrate: {DURATIONS} (default: {PROBE_TIMEOUT_S:g}; machines: {SLOW_TIMEOUT_S:g})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


@dataclass
class Finding:
    """The result of trying one substrate."""

    name: str
    works: bool = False
    isolation: str | None = None
    capabilities: list[str] = field(default_factory=list)
    unenforced: tuple[Unenforced, ...] = ()
    timings_ms: dict[str, float] = field(default_factory=dict)
    problem: str | None = None
    hint: str | None = None
    steps: list[dict[str, str]] = field(default_factory=list)
    """Cells only: each step of a creation, tried separately."""
    causes: list[dict[str, Any]] = field(default_factory=list)
    """Cells only: why steps fail or limits do not hold, and the remedy."""


def execute(options: argparse.Namespace) -> int:
    """Try the substrates; print each finding as soon as it is known."""
    from dutyfree.cli.host_facts import host_facts

    if options.substrate:
        _check_names(options.substrate)
    facts = host_facts()
    if not options.json:
        _print(["host", *(_line(name, value) for name, value in facts.items())])
    # What trying needs takes longer to load than the facts: they are on the screen by now.
    import asyncio
    import json

    names, not_tried = _chosen(options)
    findings = asyncio.run(_try_all(names, options))
    if options.json:
        found = [asdict(each) for each in findings]
        print(json.dumps({"host": facts, "substrates": found, "not_tried": not_tried}, indent=2))
    else:
        _report_not_tried(not_tried)
    asked = [each for each in findings if each.name in (options.substrate or [DEFAULT_SUBSTRATE])]
    return ExitCode.DONE if all(each.works for each in asked) else ExitCode.FAILED


def _report_not_tried(names: list[str]) -> None:
    slow = [name for name in names if name in SLOW]
    if slow:
        ask = f"may take minutes where there is no KVM; to try them: dutyfree doctor {' '.join(slow)}"
        _print(["", f"{', '.join(slow)}: not tried", _line("reason", ask)])
    if REMOTE in names:
        ask = f"{' and '.join(REMOTE_VARIABLES)} name no service; to try it: dutyfree doctor {REMOTE}"
        _print(["", f"{REMOTE}: not tried", _line("reason", ask)])


def _check_names(names: list[str]) -> None:
    """Raise InvalidRequest for a name that no substrate has."""
    from dutyfree.substrates import registry

    for name in names:
        if name not in registry.names():
            raise registry.unknown(name)


def _chosen(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The substrates to try, in this order, and those that are left out."""
    from dutyfree.substrates import registry

    known = registry.names()
    unasked = SLOW if any(os.environ.get(name) for name in REMOTE_VARIABLES) else (*SLOW, REMOTE)
    left_out = [] if options.all or options.substrate else [name for name in known if name in unasked]
    wanted = set(options.substrate or known) | set(known if options.all else ())
    # The default first, the slow ones last.
    order = sorted(wanted - set(left_out), key=lambda name: (name != DEFAULT_SUBSTRATE, name in SLOW, name))
    return order, left_out


async def _try_all(names: list[str], options: argparse.Namespace) -> list[Finding]:
    """The findings. One at a time: two at once would disturb each other's timings."""
    from dutyfree.cli.progress_bar import Display

    findings = []
    for name in names:
        async with Display() as display:
            if name in SLOW and not display.is_live:
                display.say(f"trying {name}, which may take minutes")
            finding = await _try(name, _timeout_s(name, options), display)
        if not options.json:
            _report(finding)
        findings.append(finding)
    return findings


def _timeout_s(name: str, options: argparse.Namespace) -> float:
    if options.timeout is not None:
        return float(options.timeout)
    return SLOW_TIMEOUT_S if name in SLOW else PROBE_TIMEOUT_S


async def _try(name: str, timeout_s: float, display: Display) -> Finding:
    import asyncio

    from dutyfree.client.local import local

    warnings.simplefilter("ignore", UnenforcedWarning)  # the finding has it
    finding = Finding(name)
    steps = Steps(finding, display)
    try:
        async with asyncio.timeout(timeout_s):
            await _probe(local(name), finding, steps)
    except DutyfreeError as error:
        finding.problem, finding.hint = error.message, error.hint
    except TimeoutError:
        finding.problem = f"no answer within {timeout_s:g} s; the step was: {steps.current}"
        finding.hint = f"allow more time: dutyfree doctor {name} --timeout {4 * timeout_s:g}"
    else:
        finding.works = True
    if name == DEFAULT_SUBSTRATE:
        await asyncio.to_thread(_diagnose, finding)
    return finding


class Steps:
    """Times the steps of trying a substrate, and shows which one it is."""

    def __init__(self, finding: Finding, display: Display) -> None:
        self._finding = finding
        self._display = display
        self.current = ""

    @contextmanager
    def step(self, words: str, name: str | None = None) -> Iterator[None]:
        """One step; `name` is its name in `timings_ms`, if it is listed there."""
        self.current = words
        self._display.state.begin(f"{self._finding.name}: {words}")
        start_s = time.perf_counter()
        yield
        if name is not None:
            self._finding.timings_ms[name] = round((time.perf_counter() - start_s) * 1e3, 2)


def _diagnose(finding: Finding) -> None:
    from dutyfree.native import spawner_path
    from dutyfree.substrates.cell.diagnosis import diagnose

    try:
        found = diagnose(spawner_path())
    except DutyfreeError as error:
        finding.problem = finding.problem or error.message
        return
    finding.steps = [{"name": step.name, "does": step.words, "outcome": step.outcome} for step in found.trial.steps]
    finding.causes = [
        {"name": cause.name, "what": cause.what, "why": cause.why, "remedy": found.remedy(cause),
         "steps": list(cause.steps), "blocks": cause in found.blocking}
        for cause in found.causes
    ]  # fmt: skip


async def _probe(host: LocalHost, finding: Finding, steps: Steps) -> None:
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        with steps.step(OPENING.get(finding.name, "opening it")):
            await stack.enter_async_context(host)
        finding.isolation = host.isolation.label
        finding.capabilities = sorted(host.capabilities)
        image = await _image(host)
        with steps.step("creating a sandbox", "create"):
            box = await host.acquire(image)
        finding.unenforced = box.unenforced
        with steps.step("running a command", "run"):
            if image is None:
                seen = await box.run("true", timeout_s=PROBE_TIMEOUT_S)
                if not seen.ok:
                    raise SubstrateFailed(f"`true` ended with exit code {seen.exit_code}, signal {seen.signal}")
            else:
                await box.files.write("/dutyfree-doctor", b"")  # the image has no program to run
        with steps.step("destroying the sandbox", "destroy"):
            await box.close()


async def _image(host: LocalHost) -> Image | None:
    """None where the host has a default image; otherwise an image with nothing in it."""
    import asyncio
    import tempfile
    from pathlib import Path

    from dutyfree.model import Image

    if host.has_default_image:
        return None
    with tempfile.TemporaryDirectory() as empty:
        layer = await asyncio.to_thread(host.store.adopt, Path(empty), "doctor")
    return Image((layer.digest,), over_host=False, cwd="/")


def _report(finding: Finding) -> None:
    """Print a finding: of a substrate that does not work, also the failing step, its cause and its remedy."""
    lines = ["", f"{finding.name}: {'works' if finding.works else 'does not work here'}"]
    if finding.works:
        timings = ", ".join(f"{name} {value} ms" for name, value in finding.timings_ms.items())
        lines += [_line("isolation", finding.isolation or ""), _line("one sandbox", timings)]
        lines.append(_line("can", ", ".join(finding.capabilities)))
        if finding.unenforced:
            from dutyfree.model.spec import describe_unenforced

            lines.append(_line("not enforced", describe_unenforced(finding.unenforced)))
    if finding.steps:
        done = sum(step["outcome"] == "ok" for step in finding.steps)
        lines.append(_line("steps", f"{done} of {len(finding.steps)} work"))
    for cause in finding.causes:
        blocks = cause["blocks"] and not finding.works
        lines.append(_line("cause" if blocks else "limited by", f"{cause['what']}: {cause['why']}"))
        named = [step for step in finding.steps if step["name"] in cause["steps"]]
        lines += [_line("", f"fails: {step['does']} ({step['outcome']})") for step in named]
        lines += [_line("", f"remedy: {cause['remedy']}")] if cause["remedy"] else []
    if finding.problem and not any(cause["what"] in finding.problem for cause in finding.causes):
        lines.append(_line("problem", finding.problem))
    if finding.hint and not any(cause["remedy"] == finding.hint for cause in finding.causes):
        lines.append(_line("all in one line" if _is_sum(finding) else "hint", finding.hint))
    _print(lines)


def _is_sum(finding: Finding) -> bool:
    return sum(bool(cause["blocks"]) for cause in finding.causes) > 1


def _line(name: str, value: str) -> str:
    return f"  {name:<16} {value}"


def _print(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)
