//! The target `nic_one_rma` of crates/fuzz behind libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (adverb_fuzz::target("nic_one_rma").run)(input, &mut adverb_fuzz::Seen::default());
});
