// Caches of encoded keys and values, and attention over them.
#pragma once

#include <crumb/op/cache/kv_attention.hpp>
#include <crumb/op/cache/kv_cache.hpp>
#include <crumb/op/cache/kv_snapshot.hpp>
