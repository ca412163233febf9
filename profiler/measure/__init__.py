"""Measure and verify one kernel on one problem."""
