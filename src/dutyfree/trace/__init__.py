"""Where the time went: clock, span recorder, ledger, append-only journal."""

from dutyfree.trace.clock import now_ns
from dutyfree.trace.journal import JournalWriter, read_journal
from dutyfree.trace.ledger import Ledger, account
from dutyfree.trace.recorder import SpanRecorder, timed

__all__ = ["JournalWriter", "Ledger", "SpanRecorder", "account", "now_ns", "read_journal", "timed"]
