"""Background processes: actions that outlive the call which started them, with a bounded ring of their output."""
