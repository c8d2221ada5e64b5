// Attention over keys and values in floats or halves.
#pragma once

#include <crumb/op/attention.hpp>
