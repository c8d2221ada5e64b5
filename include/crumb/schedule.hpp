// Schedules of precision.
#pragma once

#include <crumb/op/schedule/learned_schedule.hpp>
#include <crumb/op/schedule/precision_scheduler.hpp>
