"""What outlives the call that started it: background processes, with a ring of their output, and kept sessions."""
