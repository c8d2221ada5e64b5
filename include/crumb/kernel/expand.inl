// From a bit layout to the ISA's products: the only place that knows both.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct product_of<isa::CRUMB_THIS_ISA, nibble_codes> {
    using type = isa::CRUMB_THIS_ISA::nibbles;
};

template <>
struct product_of<isa::CRUMB_THIS_ISA, byte_codes> {
    using type = isa::CRUMB_THIS_ISA::int8s;
};

} // namespace crumb::inline CRUMB_ABI::kernel
