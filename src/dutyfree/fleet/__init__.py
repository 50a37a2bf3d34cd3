"""Many nodes: which of them a request goes to."""
