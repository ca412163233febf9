"""CuTe's layouts: their algebra, atoms and tilings by CUTLASS's names, and a language of expressions over them."""
