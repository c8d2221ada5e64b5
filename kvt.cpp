#include <crumb/dispatch/kv.hpp>
#include <crumb/crumb.hpp>
const crumb::dispatch::kv_functions* f(){return crumb::dispatch::kv_table.data();}
