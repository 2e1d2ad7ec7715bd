//! A planted bug, a parser that takes a length on trust: a run of this target must end with a finding.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(parsed) = adverb_wire::Packet::parse_ip(input)
        && parsed.packet.bth.opcode.operation() == adverb_wire::Operation::ReadRequest
    {
        let table = [0u8; 256];
        assert_eq!(table[parsed.packet.reth.len as usize], 0);
    }
});
