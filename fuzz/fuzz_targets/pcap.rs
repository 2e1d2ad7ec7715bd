//! The target `pcap` of crates/fuzz behind libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (adverb_fuzz::target("pcap").run)(input, &mut adverb_fuzz::Seen::default());
});
