// Every driver, for the ISA named by CRUMB_THIS_ISA. Included by isa/<name>.hpp inside its target region.
#include <crumb/kernel/math.inl> // what the others are written with

#include <crumb/kernel/attention_pass.inl>
#include <crumb/kernel/kv_unpack.inl>

#include <crumb/kernel/activation.inl>
#include <crumb/kernel/attention.inl>
#include <crumb/kernel/blocks.inl>
#include <crumb/kernel/dense.inl>
#include <crumb/kernel/expand.inl>
#include <crumb/kernel/lookup.inl>
#include <crumb/kernel/lookup_planes.inl>
#include <crumb/kernel/norm.inl>
#include <crumb/kernel/operands.inl>
#include <crumb/kernel/pq_add.inl>
#include <crumb/kernel/pq_lookup.inl>
#include <crumb/kernel/pq_score.inl>
#include <crumb/kernel/pq_tables.inl>
#include <crumb/kernel/quantize.inl>
#include <crumb/kernel/rope.inl>
#include <crumb/kernel/softmax.inl>

#include <crumb/kernel/kv_decode.inl>
#include <crumb/kernel/kv_scan.inl>
#include <crumb/kernel/kv_skip.inl>
#include <crumb/kernel/kv_uniform.inl>

#include <crumb/kernel/kv_attention.inl>
#include <crumb/kernel/kv_encode.inl>
#include <crumb/kernel/line_prefetch.inl>
#include <crumb/kernel/linear.inl>
#include <crumb/kernel/row_reader.inl>

#include <crumb/kernel/code_adds.inl>

#include <crumb/kernel/neuron_rows.inl>

#include <crumb/kernel/neuron_tiles.inl>
#include <crumb/kernel/unpack.inl>
