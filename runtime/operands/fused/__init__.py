"""What a call passes beside A, B, C and D that its epilogue applies, in the form in which kernels take it."""
