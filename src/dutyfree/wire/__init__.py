"""The stream between host and guest: framing and messages without I/O, and the one channel that carries them."""
