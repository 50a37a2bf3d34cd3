"""`dutyfree doctor`: which substrates work on this machine, found by trying each."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, seconds
from dutyfree.errors import DutyfreeError, InvalidRequest, SubstrateFailed, UnenforcedWarning
from dutyfree.model import Image, Unenforced
from dutyfree.model.spec import describe_unenforced

if TYPE_CHECKING:
    from dutyfree.client import LocalHost

PROBE_TIMEOUT_S = 60.0
DEFAULT_SUBSTRATE = "cell"


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="test which substrates work here, and say what is missing",
        description="Try each substrate: create a sandbox and run a command in it. An engine without an image to start "
        "from (DUTYFREE_IMAGE names one) gets an empty image. The exit code is 0 if the named substrates (by default: "
        f"{DEFAULT_SUBSTRATE}) work, and 1 if one of them does not.",
    )
    parser.add_argument("substrate", nargs="*", metavar="SUBSTRATE", help="only these (default: all)")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=PROBE_TIMEOUT_S,
        metavar="TIME",
        help=f"for each substrate: {DURATIONS} (default: %(default)g)",
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
    import asyncio

    from dutyfree.cli.host_facts import host_facts

    facts = host_facts()
    if not options.json:
        _print(["host", *(_line(name, value) for name, value in facts.items())])
    findings = asyncio.run(_try_all(options.substrate, options.timeout, None if options.json else _report))
    if options.json:
        print(json.dumps({"host": facts, "substrates": [asdict(each) for each in findings]}, indent=2))
    asked = [each for each in findings if each.name in (options.substrate or [DEFAULT_SUBSTRATE])]
    return ExitCode.DONE if all(each.works for each in asked) else ExitCode.FAILED


async def _try_all(wanted: list[str], timeout_s: float, report: Callable[[Finding], None] | None) -> list[Finding]:
    from dutyfree.substrates import registry

    for name in wanted:
        if name not in registry.names():
            raise InvalidRequest(f"there is no substrate {name!r}", hint=f"there are: {', '.join(registry.names())}")
    # The default first, and one at a time: two at once would disturb each other's timings.
    names = sorted(wanted or registry.names(), key=lambda name: (name != DEFAULT_SUBSTRATE, name))
    findings = []
    for name in names:
        finding = await _try(name, timeout_s)
        if report is not None:
            report(finding)
        findings.append(finding)
    return findings


async def _try(name: str, timeout_s: float) -> Finding:
    import asyncio

    from dutyfree.client import local

    warnings.simplefilter("ignore", UnenforcedWarning)  # the finding has it
    finding = Finding(name)
    try:
        async with asyncio.timeout(timeout_s), local(name) as host:
            await _probe(host, finding)
    except DutyfreeError as error:
        finding.problem, finding.hint = error.message, error.hint
    except TimeoutError:
        finding.problem, finding.hint = f"no answer within {timeout_s:g} s", "allow more time with --timeout"
    else:
        finding.works = True
    if name == DEFAULT_SUBSTRATE:
        await asyncio.to_thread(_diagnose, finding)
    return finding


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


async def _probe(host: LocalHost, finding: Finding) -> None:
    finding.isolation = host.isolation.label
    finding.capabilities = sorted(host.capabilities)
    image = await _image(host)
    marks = [time.perf_counter()]
    async with host.lease(image) as box:
        marks.append(time.perf_counter())
        if image is None:
            seen = await box.run("true", timeout_s=PROBE_TIMEOUT_S)
            if not seen.ok:
                raise SubstrateFailed(f"`true` ended with exit code {seen.exit_code}, signal {seen.signal}")
        else:
            await box.files.write("/dutyfree-doctor", b"")  # the image has no program to run
        marks.append(time.perf_counter())
        finding.unenforced = box.unenforced
    marks.append(time.perf_counter())
    lengths = (round((end - start) * 1e3, 2) for start, end in pairwise(marks))
    finding.timings_ms = dict(zip(("create", "run", "destroy"), lengths, strict=True))


async def _image(host: LocalHost) -> Image | None:
    """None where the host has a default image; otherwise an image with nothing in it."""
    import asyncio

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
