"""What a trial does in its sandbox: workloads as data, trajectories drawn from them, recordings as workloads."""
