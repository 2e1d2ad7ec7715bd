//! Speed of the simulator: permutation traffic over a full-bisection fat-tree, RoCE with PFC, an
//! acknowledgement per packet.
//!
//! `cargo run --release -p adverb-sim --example simbench -- [HOSTS] [BYTES] [REPEATS]`
//!
//! `... -- memory [HOSTS] [BYTES]`: what an active flow takes, every host sending to every other one at once.
#![allow(clippy::print_stdout, reason = "an example")]

use adverb_nic::Mtu;
use adverb_sim::record::peak_rss;
use adverb_sim::switch::pfc::Pfc;
use adverb_sim::workload::pattern::{all_to_all, permutation};
use adverb_sim::{CableKind, Config, Discipline, Sim, SwitchConfig, Topology, TransportConfig, units};
use adverb_wire::Duration;

fn config(hosts: u32) -> Config {
    let k =
        Topology::fat_tree_k(hosts).expect("a number of hosts that a fat-tree has: 16, 54, 128, 432, 1024");
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_us(1) };
    let topology = Topology::fat_tree(k, cable).expect("an even k");
    let packet = 4096 + 82;
    let mut switch = SwitchConfig {
        discipline: Discipline::SharedBuffer { buffer: 64 << 20, alpha: f64::INFINITY },
        ..SwitchConfig::default()
    };
    switch.pfc[0] = Some(Pfc { xoff: 15 * packet, xon: 12 * packet, headroom: 64 * packet });
    let transport = TransportConfig { mtu: Mtu::M4096, timeout: 0, ..TransportConfig::default() };
    Config { switch, transport, ..Config::new(topology) }
}

/// Prints the growth of the process while every host has a flow to every other one.
fn memory(hosts: u32, bytes: u32) {
    let mut sim = Sim::new(config(hosts)).expect("a sound configuration");
    let idle = peak_rss();
    sim.add_flows(all_to_all(hosts, bytes, 0));
    let listed = peak_rss();
    sim.run(u64::MAX, u64::MAX);
    let flows = f64::from(sim.flows_at_once());
    let packets = f64::from(sim.stats().packets_peak);
    let grown = (peak_rss() - idle) as f64;
    println!(
        "{hosts} hosts: {flows} flows at once, {packets} packets; idle {:.2} MB, {:.0} B a flow for its \
         record, {:.0} B a \
         flow in all, {:.0} B without its packets' {PACKET} B each",
        idle as f64 / 1e6,
        (listed - idle) as f64 / flows,
        grown / flows,
        (grown - packets * PACKET) / flows,
    );
}

/// Bytes of a packet that is under way: its hot and its cold part.
const PACKET: f64 = 96.0;

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|a| a == "memory").is_some() {
        let hosts = args.next().map_or(128, |a| a.parse().expect("a number of hosts"));
        let bytes = args.next().map_or(1000, |a| units::parse_bytes(&a).expect("bytes")) as u32;
        return memory(hosts, bytes);
    }
    let hosts: u32 = args.next().map_or(128, |a| a.parse().expect("a number of hosts"));
    let bytes = args.next().map_or(20_000_000, |a| units::parse_bytes(&a).expect("bytes")) as u32;
    let repeats: u32 = args.next().map_or(3, |a| a.parse().expect("a number of repeats"));
    let mut best = f64::MAX;
    for _ in 0..repeats {
        let mut sim = Sim::new(config(hosts)).expect("a sound configuration");
        let rss_idle = peak_rss();
        sim.add_flows(permutation(hosts, bytes, 0, &mut fastrand::Rng::with_seed(7)));
        let start = cpu_seconds();
        sim.run(u64::MAX, u64::MAX);
        let seconds = cpu_seconds() - start;
        best = best.min(seconds);
        let s = sim.stats();
        assert!(sim.flows_done(), "every flow ends");
        let sum = sim.summary(|_| true);
        println!(
            "{hosts} hosts x {bytes} B: {:.3} s, {:.2} M link-hops, {:.2} M events ({:.2} per hop), {:.2} M \
             link-hops/s; \
             pauses {}, drops {}, retransmitted {}, virtual {:.3} ms, avg FCT {:.3} ms, trace {:016x}, \
             packets {}; \
             peak RSS {:.1} MB, idle {:.1} MB",
            seconds,
            s.link_hops as f64 / 1e6,
            s.events as f64 / 1e6,
            s.events as f64 / s.link_hops as f64,
            s.link_hops as f64 / seconds / 1e6,
            s.pauses,
            s.drops,
            sim.retransmissions(),
            s.now_ps as f64 / 1e9,
            sum.fct_avg_ps / 1e9,
            sim.trace_hash(),
            s.packets_peak,
            peak_rss() as f64 / 1e6,
            rss_idle as f64 / 1e6,
        );
    }
    println!("best of {repeats}: {best:.3} s");
}

/// User and system time of this process, which other programs on the machine do not add to.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).map_or(0.0, |ns| ns / 1e9)
}
