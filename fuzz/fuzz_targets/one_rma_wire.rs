//! The target `one_rma_wire` of crates/fuzz behind libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (adverb_fuzz::target("one_rma_wire").run)(input, &mut adverb_fuzz::Seen::default());
});
