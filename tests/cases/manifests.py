"""Manifests as small as they can be, and those that ship, expanded once a process."""

from __future__ import annotations

from functools import cache

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import load_manifest, shipped_manifest

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


@cache
def shipped_set(name: str) -> KernelSet:
    """A manifest that ships."""
    return load_manifest(shipped_manifest(name))


def shipped_kernels(*names: str) -> dict[str, GemmConfig]:
    """The kernels of manifests that ship, by name."""
    return {kernel: config for name in names for kernel, config in _kernels(name).items()}


@cache
def _kernels(name: str) -> dict[str, GemmConfig]:
    return {kernel_name(config): config for config in shipped_set(name).expand()}
