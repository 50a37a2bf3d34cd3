"""Tar archives: a reader that treats them as hostile input, decompression, and how we write headers."""
