"""What programs call: matmul, plan, grouped and array matmul."""
