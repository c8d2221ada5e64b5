// Folded feed-forward networks.
#pragma once

#include <crumb/op/ffn/folded_ffn.hpp>
