"""Layers as tar archives, and back: what comes in is believed in nothing, what goes out is the same to the byte."""
