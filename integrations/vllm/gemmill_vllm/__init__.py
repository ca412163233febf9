"""A plugin of vLLM: gemmill's kernels come before vLLM's own, and also compute layers that are not quantised."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Make vLLM's linear layers and experts use gemmill. vLLM calls this in each process, in some more than once;
    further calls do nothing."""
    import vllm.envs as envs
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    import gemmill
    from gemmill_vllm import experts, fp8, u4, unquantized

    # vLLM's cache of compiled models has the values of these in its keys: it must not load what was compiled without
    # the plugin.
    envs.environment_variables["GEMMILL_VLLM"] = lambda: gemmill.__version__
    for kernel, kind, table in (
        (fp8.GemmillFP8LinearKernel, "fp8", linear._POSSIBLE_FP8_KERNELS),
        (u4.GemmillU4LinearKernel, "mp", linear._POSSIBLE_KERNELS),
    ):
        kernels: list[Any] = table.get(PlatformEnum.CUDA, [])
        if kernel not in kernels:
            linear.register_linear_kernel(kernel, PlatformEnum.CUDA, kind)
            kernels = table[PlatformEnum.CUDA]
            kernels.insert(0, kernels.pop())  # it was appended, but vLLM uses the first supported kernel
    unquantized.replace()
    experts.replace()
