#include "quantized.hpp"

std::vector<std::vector<unsigned char>> quantized_of_a(const std::vector<float>& w) {
    return quantized_by<crumb::q4_0, crumb::q8_0, crumb::u2>(w);
}

std::vector<float> weights() { return weights_near_ties(std::size_t{1} << 20); }
