"""The bench: the paper's experiments, their data sets and reports. Not part of the wheel."""
