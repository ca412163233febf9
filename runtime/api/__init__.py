"""The functions that programs call: matmul, plan, grouped_matmul, array_matmul."""
