// The whole run-time library. Quantizers and training are in crumb/offline.
#pragma once

#include <crumb/format/list.hpp>
#include <crumb/format/q4_0_absorbing.hpp>
#include <crumb/op/attention.hpp>
#include <crumb/op/cache/kv_attention.hpp>
#include <crumb/op/cache/kv_snapshot.hpp>
#include <crumb/op/ffn/folded_ffn.hpp>
#include <crumb/op/float_ops.hpp>
#include <crumb/op/linear/any_linear.hpp>
#include <crumb/op/linear/dense_linear.hpp>
#include <crumb/op/linear/linear.hpp>
#include <crumb/op/linear/nested_linear.hpp>
#include <crumb/op/schedule/learned_schedule.hpp>
#include <crumb/op/schedule/precision_scheduler.hpp>
