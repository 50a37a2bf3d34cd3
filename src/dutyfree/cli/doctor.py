"""`dutyfree doctor`: what can run here, found out by running it."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode, told_unenforced
from dutyfree.errors import DutyfreeError, InvalidRequest, SubstrateFailed
from dutyfree.model import Image, Unenforced

if TYPE_CHECKING:
    from dutyfree.client import LocalHost

PROBE_TIMEOUT_S = 60.0
DEFAULT_SUBSTRATE = "cell"


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="say what can run here, why not, and what to install",
        description="Try each substrate by making a sandbox and acting in it. An engine without an image to start from "
        "(DUTYFREE_IMAGE names one) gets an empty one. The exit code is 0 if what was asked for, or else the default "
        f"one, {DEFAULT_SUBSTRATE}, works, and 1 if it does not.",
    )
    parser.add_argument("substrate", nargs="*", metavar="SUBSTRATE", help="only these (default: all)")
    parser.add_argument(
        "--timeout", type=float, default=PROBE_TIMEOUT_S, metavar="S", help="for each (default: %(default)g)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


@dataclass
class Finding:
    """What trying one substrate showed."""

    name: str
    works: bool = False
    isolation: str | None = None
    capabilities: list[str] = field(default_factory=list)
    unenforced: tuple[Unenforced, ...] = ()
    timings_ms: dict[str, float] = field(default_factory=dict)
    problem: str | None = None
    hint: str | None = None


def execute(options: argparse.Namespace) -> int:
    """Try everything, print what was found."""
    import asyncio

    from dutyfree.cli.host_facts import host_facts

    facts = host_facts()
    findings = asyncio.run(_try_all(options.substrate, options.timeout))
    if options.json:
        print(json.dumps({"host": facts, "substrates": [asdict(each) for each in findings]}, indent=2))
    else:
        print("\n".join(_lines(facts, findings)))
    asked = [each for each in findings if each.name in (options.substrate or [DEFAULT_SUBSTRATE])]
    return ExitCode.DONE if all(each.works for each in asked) else ExitCode.FAILED


async def _try_all(wanted: list[str], timeout_s: float) -> list[Finding]:
    from dutyfree.substrates import registry

    for name in wanted:
        if name not in registry.names():
            raise InvalidRequest(f"there is no substrate {name!r}", hint=f"there are: {', '.join(registry.names())}")
    # The default first; one after the other, so that the timings do not disturb each other.
    names = sorted(wanted or registry.names(), key=lambda name: (name != DEFAULT_SUBSTRATE, name))
    return [await _try(name, timeout_s) for name in names]


async def _try(name: str, timeout_s: float) -> Finding:
    import asyncio

    from dutyfree.client import local

    finding = Finding(name)
    try:
        async with asyncio.timeout(timeout_s), local(name) as host:
            await _probe(host, finding)
    except DutyfreeError as error:
        finding.problem, finding.hint = error.message, error.hint
    except TimeoutError:
        finding.problem, finding.hint = f"no answer within {timeout_s:g} s", "give it longer with --timeout"
    else:
        finding.works = True
    return finding


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
            await box.files.write("/dutyfree-doctor", b"")  # there is no program in it to run
        marks.append(time.perf_counter())
        finding.unenforced = box.unenforced
    marks.append(time.perf_counter())
    lengths = (round((end - start) * 1e3, 2) for start, end in pairwise(marks))
    finding.timings_ms = dict(zip(("create", "run", "destroy"), lengths, strict=True))


async def _image(host: LocalHost) -> Image | None:
    """None where sandboxes have something to start from; otherwise an image with nothing in it."""
    import asyncio

    if host.has_default_image:
        return None
    with tempfile.TemporaryDirectory() as empty:
        layer = await asyncio.to_thread(host.store.adopt, Path(empty), "doctor")
    return Image((layer.digest,), over_host=False, cwd="/")


def _lines(facts: dict[str, str], findings: list[Finding]) -> list[str]:
    lines = ["host"]
    lines += [f"  {name:<16} {value}" for name, value in facts.items()]
    for finding in findings:
        lines += ["", f"{finding.name}: {'works' if finding.works else 'does not work here'}"]
        if finding.works:
            timings = ", ".join(f"{name} {value} ms" for name, value in finding.timings_ms.items())
            lines += [
                f"  {'isolation':<16} {finding.isolation}",
                f"  {'one sandbox':<16} {timings}",
                f"  {'can':<16} {', '.join(finding.capabilities)}",
            ]
            if finding.unenforced:
                lines.append(f"  {'not enforced':<16} {told_unenforced(finding.unenforced)}")
        else:
            lines.append(f"  {'problem':<16} {finding.problem}")
        if finding.hint:
            lines.append(f"  {'hint':<16} {finding.hint}")
    return lines
