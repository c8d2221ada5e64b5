// What most programs want beside the library: memory, the end of the program on errors, parts for threads.
// Nothing else of the library needs it.
#pragma once

#include <crumb/core/arena.hpp>
#include <crumb/core/buffer.hpp>
#include <crumb/core/must.hpp>
#include <crumb/core/parallel.hpp>
