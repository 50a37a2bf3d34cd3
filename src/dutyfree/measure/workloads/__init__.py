"""Workloads: what a trial does in its sandbox. Workloads as data, trajectories drawn from them, recordings."""
