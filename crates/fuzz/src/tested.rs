//! Two nodes of which one has its NIC under test, and the other stands for whoever sends to it: what targets
//! of a NIC's way in have in common.

use adverb_nic::*;
use adverb_wire::packet::Flow;
use adverb_wire::{Duration, Packet};

#[path = "../../nic/tests/world/mod.rs"]
pub mod world;
use world::*;

/// The node whose NIC is under test, and the one whose frames the input has.
pub const TESTED: usize = 1;
pub const PEER: usize = 0;
/// Bytes of each node's memory.
pub const LEN: usize = 4096;
/// Where nobody may write.
pub const GUARDED: usize = 1024;
/// Small, so that messages of several packets are small.
pub const MTU: Mtu = Mtu::M256;
pub const LONG: usize = 600;
/// In what is posted: a message of several packets.
pub const LONG_BIT: u8 = 0x80;
/// Stand in an input for the tested node's region, and for the peer's.
pub const OWN_KEY: u32 = 0x11;
pub const PEER_KEY: u32 = 0x22;

/// Memory that only its node may write.
pub fn guarded(w: &mut World) -> Memory {
    let guarded = w.memory_with(TESTED, GUARDED, Access::LOCAL_WRITE);
    guarded.write(0, &pattern(9, GUARDED));
    guarded
}

/// Panics where it was written.
pub fn check_guarded(guarded: &Memory) {
    assert!(guarded.read(0, GUARDED) == pattern(9, GUARDED), "memory that nobody gave away was written");
}

/// Of a frame from the peer.
pub fn flow(w: &World) -> Flow {
    Flow { src: w.nodes[PEER].gid, dst: w.nodes[TESTED].gid, ..Flow::default() }
}

/// Counts of the tested NIC under names that say that it has refused something.
pub fn refused(w: &World, is_refusal: impl Fn(&str) -> bool) -> u64 {
    let counts = w.nodes[TESTED].nic.counters();
    counts.iter().filter(|(name, _)| is_refusal(name)).map(|(_, count)| count).sum()
}

/// Lets the tested NIC say what it has to say, and looks whether all is well.
pub fn settle(w: &mut World) {
    let mut out = TxFrame::default();
    let now = w.now;
    let mut sent = 0;
    while w.nodes[TESTED].nic.next_frame(now, &mut out) {
        sent += 1;
        assert!(sent < 10_000, "a NIC that nobody answers falls silent");
    }
    while w.poll(TESTED).is_some() {}
    let nic = &mut w.nodes[TESTED].nic;
    while nic.next_event().is_some() {}
    nic.check_invariants();
}

/// Lets time pass for the tested NIC.
pub fn wait(w: &mut World, time: Duration) {
    w.now += time;
    let now = w.now;
    w.nodes[TESTED].nic.on_timer(now);
    settle(w);
}

/// Loses the tested node's packet of this number, and no other.
pub fn lose(w: &mut World, mut left: Option<u32>) {
    w.drop_if = Some(Box::new(move |from, _| {
        let lost = from == TESTED && left == Some(0);
        left = if from == TESTED { left.and_then(|n| n.checked_sub(1)) } else { left };
        lost
    }));
}

/// A packet as it stands in an input, from the BTH to the ICRC, which is not looked at here.
pub fn bytes(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    let headers = packet.emit_bth(&mut bytes);
    bytes.truncate(headers);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + packet.pad() + adverb_wire::ICRC_LEN, 0);
    bytes
}
