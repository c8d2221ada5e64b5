// Rows of neurons for the ISA named by CRUMB_THIS_ISA, in the order in which one is written with the other.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/isa/portable/four_rows.inl>
#endif

#include <crumb/kernel/ffn/line_prefetch.inl>
#include <crumb/kernel/ffn/row_reader.inl>

#include <crumb/kernel/ffn/code_adds.inl>
#include <crumb/kernel/ffn/neuron_rows.inl>
#include <crumb/kernel/ffn/neuron_tiles.inl>
