// Attention over arrays for the ISA named by CRUMB_THIS_ISA, in the order in which one is written with the
// other.
#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/kernel/attention/attention.inl>
