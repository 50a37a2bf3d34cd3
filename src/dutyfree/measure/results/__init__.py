"""The results directory of a study: the study, the machine, and every trial."""
