"""Helpers that several test modules share. pytest finds them by `pythonpath` in pyproject.toml."""
