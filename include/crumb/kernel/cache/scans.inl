// Scans of product-quantized codes for the ISA named by CRUMB_THIS_ISA.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>
#endif

#include <crumb/kernel/cache/pq_lookup.inl>

#include <crumb/kernel/cache/expand_rows.inl>
#include <crumb/kernel/cache/expand_words.inl>
#include <crumb/kernel/cache/pq_add.inl>
#include <crumb/kernel/cache/pq_score.inl>

#include <crumb/kernel/cache/expand_score.inl>
