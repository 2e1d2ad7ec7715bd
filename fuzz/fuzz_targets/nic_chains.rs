//! The target `nic_chains` of crates/fuzz behind libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (adverb_fuzz::target("nic_chains").run)(input, &mut adverb_fuzz::Seen::default());
});
