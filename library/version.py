"""The version of gemmill, in a module without imports."""

__version__ = "0.1.0"
