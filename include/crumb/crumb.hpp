// The whole run-time library. Quantizers and training are in crumb/offline.
#pragma once

#include <crumb/format/list.hpp>
#include <crumb/format/q4_0_absorbing.hpp>
#include <crumb/op/any_linear.hpp>
#include <crumb/op/attention.hpp>
#include <crumb/op/dense_linear.hpp>
#include <crumb/op/float_ops.hpp>
#include <crumb/op/folded_ffn.hpp>
#include <crumb/op/kv_attention.hpp>
#include <crumb/op/kv_snapshot.hpp>
#include <crumb/op/learned_schedule.hpp>
#include <crumb/op/linear.hpp>
#include <crumb/op/nested_linear.hpp>
#include <crumb/op/precision_scheduler.hpp>
