"""Figures and reports of records."""
