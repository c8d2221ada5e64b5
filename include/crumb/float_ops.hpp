// Norms, softmax, rotary embedding and activation functions.
#pragma once

#include <crumb/op/float_ops.hpp>
