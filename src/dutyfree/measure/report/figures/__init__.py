"""One function per figure: it takes the evidence, and returns a drawing or the reason why there is none."""
