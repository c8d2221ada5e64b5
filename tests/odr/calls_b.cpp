#include "calls.hpp"

std::vector<std::vector<float>> calls_of_b(const char* isa) { return calls(isa); }
