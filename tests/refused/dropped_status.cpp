// REFUSED: ignoring retur.*nodiscard
#include <crumb/core/status.hpp>

crumb::status step();

void run() { step(); }
