"""The gateway: HTTP faces for clients without the native protocol. It keeps nothing that another would need."""
