// What commands report of the model that they ran.
#pragma once

#include "cli/report.hpp"
#include "eval/evaluate.hpp"
#include "model/session.hpp"

#include <string>

namespace lm {

/// Puts `ffn`, `ffn_bytes_per_token` and, of folded networks, `fixed` and what has been counted of `missed`.
void put_ffn(json_object& out, const session& s);
/// The same for people; empty of networks that are not folded.
std::string ffn_line(const session& s);

/// Puts `tokens`, `nll`, `nll_standard_error` and `ppl`.
void put_likelihood(json_object& out, const evaluation& e);
/// Puts `kl_divergence`, `kl_standard_error` and `top1_agreement`.
void put_divergence(json_object& out, const evaluation& e);
/// Prints both for people, the latter if there was a reference.
void print_evaluation(const evaluation& e, bool has_reference);

/// The name that results are reported under: the type asked for, or that of the file's own matrices.
std::string weights_name(const model& m, weight_type type);

} // namespace lm
