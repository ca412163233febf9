"""From emitted source to a running kernel: toolchain, compiler, store, pack, registry, selector, launcher."""
