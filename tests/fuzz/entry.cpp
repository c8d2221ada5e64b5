// What libFuzzer calls.
#include "fuzz.hpp"
#include "mutator.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    lm::fuzz::run(std::as_bytes(std::span(data, size)));
    return 0;
}

/// libFuzzer's own mutation.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using namespace lm::fuzz;

/// The mutated input in libFuzzer's memory, if there is one that fits.
std::size_t put(const bytes& from, std::uint8_t* to, std::size_t most) {
    if (from.empty() || from.size() > most)
        return 0;
    std::memcpy(to, from.data(), from.size());
    return from.size();
}

} // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
    dice random(seed);
    if (!random.one_in(CRUMB_FUZZ_PLAIN))
        for (int attempt = 0; attempt < 3; ++attempt)
            if (const auto done = put(mutated(std::as_bytes(std::span(data, size)), random), data, most);
                done != 0)
                return done;
    return LLVMFuzzerMutate(data, size, most);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* a, std::size_t a_size,
                                                 const std::uint8_t* b, std::size_t b_size, std::uint8_t* out,
                                                 std::size_t most, unsigned seed) {
    dice random(seed);
    return put(crossed(std::as_bytes(std::span(a, a_size)), std::as_bytes(std::span(b, b_size)), random), out,
               most);
}
