// The library needs neither exceptions nor RTTI: this file is compiled without both.
#include "../odr/products.hpp"

#include <cstdio>

int main() {
    for (float y : product<crumb::q4_0>(nullptr))
        if (!(y > -1e6f && y < 1e6f))
            return 1;
    if (crumb::linear<crumb::q8_0>::plan({}, {}, {"none"}).ok())
        return 2;
    return 0;
}
