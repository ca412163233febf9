"""The family of TMA + WGMMA kernels (sm_90a): its rules, tiles, registers and shared memory."""
