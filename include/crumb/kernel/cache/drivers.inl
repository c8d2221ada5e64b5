// Caches of codes for the ISA named by CRUMB_THIS_ISA, in the order in which one is written with the other.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/isa/portable/pq.inl>
#endif

#include <crumb/kernel/cache/byte_rows.inl>
#include <crumb/kernel/cache/code_search.inl>
#include <crumb/kernel/cache/expand_query.inl>
#include <crumb/kernel/cache/integer_words.inl>
#include <crumb/kernel/cache/pq_tables.inl>
#include <crumb/kernel/cache/scan_means.inl>
#include <crumb/kernel/cache/scan_rounding.inl>
#include <crumb/kernel/cache/scans.inl>
#include <crumb/kernel/cache/unpack.inl>

#include <crumb/kernel/cache/decode.inl>
#include <crumb/kernel/cache/encode.inl>
#include <crumb/kernel/cache/field_scores.inl>
#include <crumb/kernel/cache/integers.inl>
#include <crumb/kernel/cache/matrices.inl>
#include <crumb/kernel/cache/scan.inl>
#include <crumb/kernel/cache/uniform.inl>

#include <crumb/kernel/cache/fields.inl>
#include <crumb/kernel/cache/skip.inl>

#include <crumb/kernel/cache/attention.inl>
