// Products with quantized, nested and dense weights.
#pragma once

#include <crumb/format/list.hpp>
#include <crumb/op/linear/any_linear.hpp>
#include <crumb/op/linear/dense_linear.hpp>
#include <crumb/op/linear/linear.hpp>
#include <crumb/op/linear/nested_linear.hpp>
