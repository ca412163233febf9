"""Manifests as small as they can be."""

from __future__ import annotations

ONE = """name: one
sets:
  - a: {dtype: bf16, major: k}
    b: {dtype: bf16, major: k}
    accumulator: f32
    d: {dtype: bf16, major: n}
    tile: 64x32x64
    schedule: pingpong
"""
"""One kernel; more keys of its set may follow."""
