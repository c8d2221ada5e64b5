#include "calls.hpp"

std::vector<std::vector<float>> calls_of_a(const char* isa) { return calls(isa); }
