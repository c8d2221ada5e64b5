// Caches of codes for the ISA named by CRUMB_THIS_ISA, in the order in which one is written with the other.
#include <crumb/kernel/cache/scans.inl>

#include <crumb/kernel/cache/encode.inl>
