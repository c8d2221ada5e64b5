#include "products.hpp"

std::vector<float> q4_0_of_a(const char* isa) { return product<crumb::q4_0>(isa); }
std::vector<float> q8_0_of_a(const char* isa) { return product<crumb::q8_0>(isa); }
