// m, n, k, a_t, b_t
std::vector<std::tuple<int, int, int, bool, bool>> training_set = {
    std::make_tuple(1760, 16, 1760, false, false),
    std::make_tuple(35, 8457, 2560, true, false),
    // std::make_tuple(9, 9, 9, false, false),
    std::make_tuple(3072, 7435, 1024, false, true) /* the last
                                                      one */
};

std::vector<std::tuple<int, int, int, bool, bool>> inference_server_set = {
    std::make_tuple(1760, 16, 1760, false, false),
};

std::vector<std::tuple<int, int, int, bool, bool, float>> sparse_set = {
    std::make_tuple(7680, 1, 2560, false, false, 0.95),
};
