#include "quantized.hpp"

std::vector<std::vector<unsigned char>> quantized_of_b(const std::vector<float>& w) {
    return quantized_by<crumb::q4_0, crumb::q8_0, crumb::u2>(w);
}
