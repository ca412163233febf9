"""libgemmill for C and C++ programs: its sources, and where an installation has it."""
