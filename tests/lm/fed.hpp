// Logits of tokens that a session has to take.
#pragma once

#include "model/session.hpp"

#include <gtest/gtest.h>

namespace lm::test {

/// What `session::feed` returns, valid until the next call; empty after a test failure where that is an
/// error.
inline std::span<const float> fed(session& s, std::span<const std::int32_t> tokens, std::size_t wanted) {
    const auto logits = s.feed(tokens, wanted);
    EXPECT_TRUE(logits) << logits.message();
    return logits ? *logits : std::span<const float>();
}

} // namespace lm::test
