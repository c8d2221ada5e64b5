// Scans of product-quantized codes for the ISA named by CRUMB_THIS_ISA.
#include <crumb/kernel/cache/pq_lookup.inl>

#include <crumb/kernel/cache/pq_add.inl>
#include <crumb/kernel/cache/pq_score.inl>
