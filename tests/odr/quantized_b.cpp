#include "quantized.hpp"

std::vector<std::vector<unsigned char>> quantized_of_b(const std::vector<float>& w) {
    return rounding_formats::quantized(w);
}
