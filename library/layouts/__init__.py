"""CuTe layouts: the algebra, atoms and tilings with CUTLASS's names, and a language of layout expressions."""
