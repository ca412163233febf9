"""What kernels are measured beside: cuBLAS, cuBLASLt, Triton, nvMatmulHeuristics."""
