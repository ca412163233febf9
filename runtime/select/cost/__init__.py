"""The time of a kernel on a problem: the analytic model and its corrections."""
