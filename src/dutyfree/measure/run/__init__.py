"""Carrying a study out: one trial, proven coldness, arrivals, and the runner of them all."""
