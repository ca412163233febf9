"""CTAs of an SM, against NVIDIA's own calculator, a header of the CUDA runtime."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.arch import ARCHS, Arch
from gemmill.library.occupancy import ctas_by_limit, occupancy
from gemmill.runtime.compile.toolchain import Toolchain

ORACLE = r"""
#include <stddef.h>
#include <stdio.h>
#include "cuda_occupancy.h"
int main() {
    int major, minor, threads, registers, shared, most_threads, sm_shared, reserved;
    while (scanf("%d %d %d %d %d %d %d %d", &major, &minor, &threads, &registers, &shared, &most_threads, &sm_shared,
                 &reserved) == 8) {
        cudaOccDeviceProp properties;
        properties.computeMajor = major;
        properties.computeMinor = minor;
        properties.maxThreadsPerBlock = 1024;
        properties.maxThreadsPerMultiprocessor = most_threads;
        properties.regsPerBlock = properties.regsPerMultiprocessor = 65536;
        properties.warpSize = 32;
        properties.numSms = 132;
        properties.sharedMemPerBlock = 49152;
        properties.sharedMemPerMultiprocessor = sm_shared;
        properties.sharedMemPerBlockOptin = sm_shared - reserved;
        properties.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers;
        kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = sm_shared - reserved;
        kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        cudaOccResult result;
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &kernel, &state, threads, shared);
        printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
        fflush(stdout);
    }
}
"""
Ask = Callable[[Arch, int, int, int], int]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """NVIDIA's calculator."""
    headers = Toolchain.find().pieces["cudart"].place
    if (compiler := shutil.which("c++")) is None or not (headers / "cuda_occupancy.h").is_file():
        pytest.skip("no C++ compiler, or no cuda_occupancy.h")
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "oracle.cpp").write_text(ORACLE)
    subprocess.run([compiler, f"-I{headers}", "oracle.cpp", "-o", "oracle"], cwd=folder, check=True)
    with subprocess.Popen([folder / "oracle"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ctas(arch: Arch, threads: int, registers: int, shared_bytes: int) -> int:
            values = *arch.capability, threads, registers, shared_bytes, arch.sm_threads
            print(*values, arch.shared_bytes + arch.reserved_bytes, arch.reserved_bytes, file=questions, flush=True)
            return int(answers.readline())

        yield ctas
        questions.close()


@given(
    st.sampled_from([*ARCHS.values()]),
    st.integers(1, 32).map(lambda warps: 32 * warps),
    st.integers(1, 255),
    st.integers(0, 232_448),
)
def test_an_sm_holds_as_many_ctas_as_nvidia_s_calculator_says(
    ask: Ask, arch: Arch, threads: int, registers: int, shared_bytes: int
) -> None:
    shared_bytes %= arch.shared_bytes + 1
    expected = ask(arch, threads, registers, shared_bytes)
    assert min(ctas_by_limit(arch, threads, registers, shared_bytes).values()) == expected


def test_the_limits_that_decide_are_named() -> None:
    assert occupancy(ARCHS["sm90"], 256, 91, 17408).reason == (
        "the limit is registers, since a CTA has 256 threads of 91 registers and 17,408 bytes of shared memory"
    )
    assert occupancy(ARCHS["sm90a"], 384, 168, 213_264).reason.startswith("the limit is registers and shared memory,")
    assert occupancy(ARCHS["sm90a"], 384, 168, 213_264).ctas == 1
