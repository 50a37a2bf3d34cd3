"""Every figure, one function each: evidence in, a drawing out, or why there is none."""
