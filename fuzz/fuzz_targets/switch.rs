//! The target `switch` of crates/fuzz behind libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (adverb_fuzz::target("switch").run)(input, &mut adverb_fuzz::Seen::default());
});
