// The whole run-time library: a header per system, and int8 products for prompts. Quantizers and training
// are in crumb/offline.
#pragma once

#include <crumb/attention.hpp>
#include <crumb/cache.hpp>
#include <crumb/ffn.hpp>
#include <crumb/float_ops.hpp>
#include <crumb/linear.hpp>
#include <crumb/op/cache/int8_products.hpp>
#include <crumb/schedule.hpp>
