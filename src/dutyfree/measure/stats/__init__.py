"""Statistics: from trials to numbers, each with its interval and its caveats. Pure."""
