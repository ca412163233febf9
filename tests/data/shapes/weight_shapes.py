# Weights of a layer, as ([K, N], the dimension that tensor parallelism splits)
WEIGHT_SHAPES = {
    "meta-llama/Llama-3-8b": [
        ([4096, 6144], 1),
        ([4096, 4096], 0),
    ],
    "acme/tiny": [([256, 512], 1), ([4096, 4096], 0)],
}

WEIGHT_SHAPES_MOE = {
    "acme/experts": [[8, 2, 4096, 28672 // 2]],
}
