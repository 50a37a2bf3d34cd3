"""From trials to numbers that can be believed, each with its interval and its caveats. Pure."""
