"""Chooses the substrate for a rollout: by the trust in its code, and by the measured cost of each substrate."""
