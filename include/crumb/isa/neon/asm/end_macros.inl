// Undefines what macros.inl defines.

#undef CRUMB_SUMS
#undef CRUMB_FOUR_
#undef CRUMB_FOUR
#undef CRUMB_BITS_
#undef CRUMB_BITS
#undef CRUMB_WORDS_
#undef CRUMB_WORDS
#undef CRUMB_LOOK_UP_
#undef CRUMB_LOOK_UP
#undef CRUMB_LOAD_
#undef CRUMB_LOAD
#undef CRUMB_STORE_
#undef CRUMB_STORE
#undef CRUMB_DOT_
#undef CRUMB_DOT
#undef CRUMB_LOOK_UP_ROW_
#undef CRUMB_LOOK_UP_ROW
#undef CRUMB_CLOBBERS
