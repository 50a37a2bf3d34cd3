"""`dutyfree token`: the tokens of clients of a server on this machine."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import positive

if TYPE_CHECKING:
    from dutyfree.server.node.state import State


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "token",
        help="make, list and revoke the tokens of a server's clients",
        description="Make, list and revoke the tokens with which clients use the server of this machine. A token "
        "belongs to an owner; leases of one owner are invisible to the others. Changes hold at once, also while the "
        "server runs.",
        epilog="example: dutyfree token create alice --sandboxes 100",
    )
    inner = parser.add_commands()
    create = inner.add_parser(
        "create",
        help="make a token and print it, this once",
        description="Make a token, and print it. It is stored as a hash, and cannot be shown again.",
        epilog="example: dutyfree token create alice --owner team-a --sandboxes 100",
    )
    create.add_argument("name", metavar="NAME", help="what the token is called in lists")
    create.add_argument("--owner", metavar="OWNER", help="whose leases it makes and sees (default: its own name)")
    create.add_argument("--sandboxes", type=positive, metavar="N", help="the most sandboxes of the owner at a time")
    create.add_argument("--per-minute", type=positive, metavar="N", help="the most leases begun in a minute")
    create.add_argument("--operator", action="store_true", help="it may also read the node's metrics and status")
    create.set_defaults(execute=execute_create)
    listed = inner.add_parser(
        "list",
        help="list the tokens",
        description="List the tokens, without their secrets.",
        epilog="example: dutyfree token list",
    )
    listed.set_defaults(execute=execute_list)
    revoke = inner.add_parser(
        "revoke",
        help="make a token invalid",
        description="Make a token invalid. Clients that are connected with it are refused within a second.",
        epilog="example: dutyfree token revoke alice",
    )
    revoke.add_argument("name", metavar="NAME", help="the token's name")
    revoke.set_defaults(execute=execute_revoke)
    for command in (create, listed, revoke):
        command.add_argument("--config", type=Path, metavar="FILE", help="the server's settings file")
        command.add_argument("--directory", type=Path, metavar="DIR", help="the server's directory")
        command.add_argument("--json", action="store_true", help="print JSON")


def execute_create(options: argparse.Namespace) -> int:
    """Print a new token."""
    state = _state(options)
    try:
        owner = options.name if options.owner is None else options.owner
        token = state.create_token(
            options.name,
            owner,
            is_operator=options.operator,
            max_sandboxes=options.sandboxes,
            leases_per_minute=options.per_minute,
        )
    finally:
        state.close()
    if options.json:
        from dutyfree.codec import dumps

        print(dumps({"name": options.name, "owner": owner, "token": token}))
    else:
        print(token)
    return ExitCode.DONE


def execute_list(options: argparse.Namespace) -> int:
    """Print all tokens."""
    state = _state(options)
    try:
        tokens = state.tokens()
    finally:
        state.close()
    if options.json:
        from dutyfree.codec import dumps

        names = ("name", "owner", "created_at", "is_operator", "max_sandboxes", "leases_per_minute")
        print(dumps([{name: getattr(each, name) for name in names} for each in tokens]))
        return ExitCode.DONE
    if not tokens:
        print("there are no tokens", file=sys.stderr)
    for each in tokens:
        limits = [f"{each.max_sandboxes} sandboxes" if each.max_sandboxes is not None else ""]
        limits += [f"{each.leases_per_minute} leases a minute" if each.leases_per_minute is not None else ""]
        limits += ["operator" if each.is_operator else ""]
        made = time.strftime("%Y-%m-%d", time.localtime(each.created_at))
        print(f"{each.name:20} {each.owner:20} {made}  {', '.join(filter(None, limits))}".rstrip())
    return ExitCode.DONE


def execute_revoke(options: argparse.Namespace) -> int:
    """Revoke one."""
    state = _state(options)
    try:
        state.revoke_token(options.name)
    finally:
        state.close()
    return ExitCode.DONE


def _state(options: argparse.Namespace) -> State:
    from dutyfree.server.node.state import State
    from dutyfree.server.settings import load_settings

    directory = options.directory if options.directory is not None else load_settings(options.config).directory
    return State(directory / "state.sqlite")
