"""The node: owns sandboxes, leases and images, and serves clients by the native protocol."""
