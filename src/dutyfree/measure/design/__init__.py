"""What a study compares, and in which order its trials are run. Pure."""
