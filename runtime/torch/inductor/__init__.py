"""gemmill in Inductor: a pass over its graphs that puts the operators in, and a choice for its autotuner."""
