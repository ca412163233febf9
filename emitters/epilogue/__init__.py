"""Emission of epilogues as CUDA C++."""
