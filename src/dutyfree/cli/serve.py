"""`dutyfree serve`: this machine as a sandbox service."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, positive, seconds
from dutyfree.errors import DutyfreeError, InvalidRequest, Unsupported

if TYPE_CHECKING:
    from dutyfree.server.settings import Settings
    from dutyfree.server.supervisor import Supervisor

FIRST_TOKEN = "first"


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="give out sandboxes of this machine to clients of Dutyfree, E2B and SWE-ReX",
        description="Serve sandboxes of this machine until Ctrl-C: to native clients (`dutyfree.connect`), and over "
        "HTTP to the SDKs of E2B and SWE-ReX. Clients need a token; the first start makes one and prints it once. The "
        "first Ctrl-C, or SIGTERM, lets leases end in peace; the second ends everything.",
        epilog="example: dutyfree serve --http 127.0.0.1:7481",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML (default: none are needed)")
    parser.add_argument(
        "--native", metavar="ADDRESS:PORT", help="where native clients connect (default: 127.0.0.1:7480)"
    )
    parser.add_argument("--http", metavar="ADDRESS:PORT", help="for HTTP clients (default: 127.0.0.1:7481)")
    parser.add_argument("--gateways", type=positive, metavar="N", help="processes that serve HTTP (default: 1)")
    parser.add_argument("--substrate", metavar="NAME", help="what makes the sandboxes (default: cell)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="where tokens and leases are remembered")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="the socket for clients of this machine")
    parser.add_argument("--domain", metavar="NAME", help="names PORT-SANDBOX.NAME lead to ports of sandboxes")
    parser.add_argument("--drain", type=seconds, metavar="TIME", help=f"how long a stop waits for leases: {DURATIONS}")
    parser.add_argument("--check", action="store_true", help="check the settings and the substrate, and serve nothing")
    parser.add_argument("--json", action="store_true", help="print the addresses, or the settings, as a JSON object")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Serve until a signal; or check."""
    from dutyfree.server.child import with_changes
    from dutyfree.server.logs import log_to_stderr
    from dutyfree.server.settings import load_settings
    from dutyfree.server.supervisor import Supervisor

    names = ("native", "http", "gateways", "substrate", "directory", "socket", "domain")
    changes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.drain is not None:
        changes["drain_s"] = options.drain
    changes = {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in changes.items()}
    settings = with_changes(load_settings(options.config), changes)
    if settings.http and find_spec("uvicorn") is None:
        hint = "pip install 'dutyfree[server]'; native clients alone need nothing more: --http ''"
        raise Unsupported("HTTP needs packages that are not installed", hint=hint)
    import asyncio  # not for help and completion

    if options.check:
        return asyncio.run(_check(settings, as_json=options.json))
    log_to_stderr("supervisor")
    token = _first_token(settings)
    file = None if options.config is None else str(options.config.absolute())
    supervisor = Supervisor(settings, file, changes)
    asyncio.run(supervisor.run(lambda: _announce(supervisor, token, as_json=options.json)))
    return ExitCode.DONE


def _first_token(settings: Settings) -> str | None:
    """A token, if there is none yet: without one, no client could use the server."""
    from dutyfree.server.node.state import State

    state = State(settings.directory / "state.sqlite")
    try:
        return None if state.tokens() else state.create_token(FIRST_TOKEN, FIRST_TOKEN, is_operator=True)
    finally:
        state.close()


def _announce(supervisor: Supervisor, token: str | None, *, as_json: bool) -> None:
    settings = supervisor.settings
    scheme = "http" if settings.certificate is None else "https"
    native = f"{scheme}://{supervisor.native_address}" if supervisor.native_address else ""
    http = f"{scheme}://{supervisor.http_address}" if supervisor.http_address else ""
    if as_json:
        from dutyfree.codec import dumps

        print(dumps({"native": native, "http": http, "socket": str(settings.socket), "token": token}), flush=True)
        return
    lines = [f"serving {settings.substrate} sandboxes; Ctrl-C stops"]
    if native:
        lines.append(f"  native   {native}      dutyfree.connect({native!r}, token=...)")
    lines.append(f"  local    unix:{settings.socket}")
    if http:
        lines.append(f"  http     {http}      E2B_API_URL={http} E2B_SANDBOX_URL={http} E2B_API_KEY=...")
    if token is not None:
        lines += ["", "the first token, shown this once (`dutyfree token create NAME` makes more):", f"  {token}"]
    print("\n".join(lines), flush=True)


async def _check(settings: Settings, *, as_json: bool) -> int:
    """Read the certificate, open the substrate, and run one command in a sandbox of it."""
    from dutyfree.client.local import LocalHost

    settings.tls()
    try:
        async with LocalHost(settings.substrate, **settings.options) as host, host.lease(settings.image) as box:
            seen = await box.run(["true"], timeout_s=60)
            isolation = host.isolation.label
    except InvalidRequest:
        raise
    except DutyfreeError as error:
        print(f"error: a sandbox could not be made: {error}", file=sys.stderr)
        return ExitCode.INFRASTRUCTURE
    facts = {
        "substrate": settings.substrate,
        "isolation": isolation,
        "native": settings.native,
        "http": settings.http,
        "gateways": settings.gateways,
        "directory": str(settings.directory),
        "socket": str(settings.socket),
        "tls": settings.certificate is not None,
        "sandboxes": settings.pool.sandboxes,
    }
    if as_json:
        from dutyfree.codec import dumps

        print(dumps({"ok": seen.ok, **facts}))
    else:
        print("\n".join(f"{name:10} {value}" for name, value in facts.items()))
        print("ok" if seen.ok else "a command in a sandbox failed")
    return ExitCode.DONE if seen.ok else ExitCode.FAILED
