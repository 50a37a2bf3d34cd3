"""The protocol between a node, which owns sandboxes, and its clients: frames, resumption, the forms of its calls."""
