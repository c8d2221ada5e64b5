// What commands report of the model that they ran.
#pragma once

#include "cli/report.hpp"
#include "model/session.hpp"

#include <string>

namespace lm {

/// Puts `ffn`, `ffn_bytes_per_token` and, of folded networks, `fixed` and what has been counted of `missed`.
void put_ffn(json_object& out, const session& s);
/// The same for people; empty of networks that are not folded.
std::string ffn_line(const session& s);

/// The name that results are reported under: the type asked for, or that of the file's own matrices.
std::string weights_name(const model& m, weight_type type);

} // namespace lm
