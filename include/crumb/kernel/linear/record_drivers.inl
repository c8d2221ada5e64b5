// Products of formats with records, in the order in which one is written with the other; after the fields of
// the ISA and the drivers of products.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#include <crumb/kernel/linear/blocks.inl>
#endif

#include <crumb/kernel/linear/fields.inl>
#include <crumb/kernel/linear/records.inl>

#include <crumb/kernel/linear/record_terms.inl>

#include <crumb/kernel/linear/record_block.inl>
#include <crumb/kernel/linear/record_codes.inl>
#include <crumb/kernel/linear/trit_sums.inl>
#include <crumb/kernel/linear/two_bit_sums.inl>

#include <crumb/kernel/linear/record_passes.inl>
#include <crumb/kernel/linear/record_run.inl>
