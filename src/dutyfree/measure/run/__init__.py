"""Runs a study: single trials, proof that cold trials are cold, arrivals, and the runner of all blocks."""
