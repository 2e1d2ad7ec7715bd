//! Cards by name, each in one paper's testbed. A value is printed by its paper, or calibrated against its
//! figures, or taken from a sibling: docs/scenarios.md tells which.

use super::profile::{Profile, RANDOM};

const NS: u64 = 1000;
const G: u64 = 1_000_000_000;

/// What the ConnectX family has in common here.
const CONNECTX: Profile = Profile {
    doorbell: 280 * NS,
    completion: 280 * NS,
    fetch: 350 * NS,
    fetch_first: 4,
    fetch_batch: 16,
    pcie_read: 310 * NS,
    pcie_write: 280 * NS,
    pcie_reads: 64,
    ..Profile::NEUTRAL
};

/// ConnectX-5 as RedN measured it.
const CONNECTX5: Profile = Profile {
    units: 8,
    execute: 127 * NS,
    pcie_rate: 100 * G,
    pipelines: 2,
    port: 50 * NS,
    read_turn: 230 * NS,
    atomic_slots: 3,
    atomic: 357 * NS,
    add: 357 * NS,
    atomic_turn: 93 * NS,
    add_turn: 3 * NS,
    cross_start: 170 * NS,
    cross_load: 530 * NS,
    wait: 4_500,
    enable: 19 * NS,
    calc: 50 * NS,
    cpu_spin: 1_888 * NS,
    cpu_poll: 2_513 * NS,
    cpu_wake: 9_620 * NS,
    cpu_copy: 100 * G,
    ..CONNECTX
};

/// ConnectX-5 in a rack behind a programmable switch, as SwordBox, Clover and Sherman have it.
const CONNECTX5_RACK: Profile = Profile {
    pcie_read: 350 * NS,
    packet: 8_500,
    receive: 8_500,
    answer: 10_700,
    pipelines: 2,
    port: 50 * NS,
    read_turn: 168 * NS,
    responder: 54_800,
    atomic_slots: 18,
    atomic: 341 * NS,
    add: 394 * NS,
    atomic_turn: 290 * NS,
    add_turn: 290 * NS,
    atomic_chip: 111 * NS,
    add_chip: 129 * NS,
    atomic_turn_chip: 100 * NS,
    word_read: 43_300,
    word_write_chip: 45_200,
    atomic_excludes: 1,
    ..CONNECTX
};

/// ConnectX-3, StaR's baseline.
const CONNECTX3: Profile = Profile {
    units: 2,
    execute: 133 * NS,
    packet: 30 * NS,
    receive: 30 * NS,
    pipelines: 1,
    read_turn: 230 * NS,
    atomic_buckets: 12,
    cache_entries: 240,
    cache_bytes: 256,
    miss: 850 * NS,
    ..CONNECTX
};

/// ConnectX-6 of RedN's table 1.
const CONNECTX6: Profile =
    Profile { units: 16, execute: 143 * NS, pipelines: 2, port: 50 * NS, read_turn: 230 * NS, ..CONNECTX };

/// ConnectX-6 Dx of StaR's figure 1.
const CONNECTX6DX: Profile = Profile {
    pcie_rate: 128 * G,
    packet: 20 * NS,
    receive: 20 * NS,
    pipelines: 2,
    cache_entries: 400,
    cache_bytes: 256,
    cache_replacement: RANDOM,
    miss: 800 * NS,
    cache_fetches: 36,
    ..CONNECTX
};

/// StaR's FPGA.
const STAR_FPGA: Profile = Profile {
    fetch: 900 * NS,
    fetch_first: 1,
    fetch_batch: 1,
    pcie_rate: 63 * G,
    pcie_read: 900 * NS,
    packet: 50 * NS,
    receive: 50 * NS,
    pipelines: 1,
    registry: 10 * NS,
    cache_entries: 120,
    cache_bytes: 256,
    miss: 1_800 * NS,
    ..CONNECTX
};

/// 1RMA's NIC.
const ONERMA: Profile = Profile {
    pcie_rate: 126 * G,
    pcie_read: 400 * NS,
    pcie_write: 200 * NS,
    pcie_reads: 16,
    ..Profile::NEUTRAL
};

/// All of them.
pub const PROFILES: [(&str, Profile); 7] = [
    ("connectx5", CONNECTX5),
    ("connectx5-rack", CONNECTX5_RACK),
    ("connectx3", CONNECTX3),
    ("connectx6", CONNECTX6),
    ("connectx6dx", CONNECTX6DX),
    ("star-fpga", STAR_FPGA),
    ("onerma", ONERMA),
];

/// The profile with a name.
pub fn by_name(name: &str) -> Option<Profile> {
    PROFILES.iter().find(|(known, _)| *known == name).map(|(_, profile)| *profile)
}
