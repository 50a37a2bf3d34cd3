"""What a study leaves behind: a directory that says what was measured, where, how, and what came of it."""
