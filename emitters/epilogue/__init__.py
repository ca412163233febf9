"""What is done to each sum before it is stored, as CUDA C++."""
