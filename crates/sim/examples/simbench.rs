//! Speed of the simulator: permutation traffic over a full-bisection fat-tree, RoCE with PFC, an
//! acknowledgement per packet.
//!
//! `cargo run --release -p adverb-sim --example simbench -- [HOSTS] [BYTES] [REPEATS]`
//!
//! `... -- memory [HOSTS] [BYTES]`: what an active flow takes, every host sending to every other one at once.
//!
//! `... -- hardware [TURNS]`: what hosts that cost something cost the simulator, each beside its floor, with
//! the bounds that it is held to; the last line has the figures for `bench/run`. The exit status is 1 when a
//! bound is not kept.
//!
//! `... -- writes [CARD] [COUNT]`: 64-byte WRITEs alone, for callgrind: two counts, and the difference.
#![allow(clippy::print_stdout, reason = "an example")]

use adverb_nic::Mtu;
use adverb_nic::queue::wqe::{BLOCK, WqeOp};
use adverb_rdma::{Caps, Connect, Error, On, QpType, Rdma, SendOrder, Status};
use adverb_sim::host::hardware::{Profile, profiles};
use adverb_sim::program::{Setup, Start};
use adverb_sim::record::peak_rss;
use adverb_sim::switch::pfc::Pfc;
use adverb_sim::workload::pattern::{all_to_all, permutation};
use adverb_sim::{CableKind, Config, Discipline, Sim, SwitchConfig, Topology, TransportConfig, units};
use adverb_sim::{FlowSpec, Verb, Via};
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

/// Two hosts on a cable, with NICs of one card.
fn pair(card: &str) -> Config {
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_ns(10) };
    let transport = TransportConfig { timeout: 0, ..TransportConfig::default() };
    let hardware = match card {
        "neutral" => Profile::NEUTRAL,
        name => profiles::by_name(name).expect("a card that there is"),
    };
    Config { transport, hardware, ..Config::new(Topology::two_hosts(cable)) }
}

/// A WRITE from the first host to the second.
fn write(bytes: u32) -> FlowSpec {
    FlowSpec { start: 0, src: 0, dst: 1, bytes, tag: 0, op: Verb::Write, via: Via::Any }
}

/// Seconds of processor time until nothing is left to do.
fn time(sim: &mut Sim) -> f64 {
    let start = cpu_seconds();
    sim.run(u64::MAX, u64::MAX);
    cpu_seconds() - start
}

/// WRITEs of a turn.
const WRITES: u32 = 200_000;

/// Millions of 64-byte WRITEs a second, on one queue pair that has 128 under way.
fn writes(card: &str, count: u32) -> f64 {
    let mut config = pair(card);
    config.transport.share_qp = true;
    let mut sim = Sim::new(config).expect("a sound configuration");
    sim.add_flows((0..count).map(|_| write(64)));
    let seconds = time(&mut sim);
    assert!(sim.flows_done(), "every WRITE ends");
    f64::from(count) / seconds / 1e6
}

/// Nanoseconds a packet of 1 KB with its acknowledgement, over so many connections in turn.
fn packet_over(card: &str, connections: u32) -> f64 {
    const PACKETS: u32 = 600_000;
    let mut sim = Sim::new(pair(card)).expect("a sound configuration");
    let bytes = PACKETS / connections * 1024;
    sim.add_flows((0..connections).map(|_| write(bytes)));
    // Connecting takes no virtual time, and is not counted.
    sim.run(0, u64::MAX);
    let seconds = time(&mut sim);
    assert!(sim.flows_done(), "every flow ends");
    seconds * 1e9 / f64::from(PACKETS)
}

/// Chains of NOPs on a queue pair of its own, one after another, each as long as its send queue.
async fn nops(rdma: Rdma, chains: u32) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let caps = Caps { max_send_wr: NOPS, ..Caps::default() };
    let qp = pd.create_ordered_qp(QpType::Rc, (&cq, &cq), None, caps, SendOrder::Cross).await?;
    qp.connect_to_itself(&Connect { timeout: 0, ..Connect::default() }).await?;
    let queue = qp.send_queue().await?;
    let blocks = queue.len() as u32 / BLOCK as u32;
    // A control segment in mlx5's layout: opcode, one segment of 16 bytes. The last asks for a completion.
    let mut wqes = vec![[0u8; BLOCK]; blocks as usize];
    wqes.iter_mut().for_each(|wqe| (wqe[3], wqe[7]) = (WqeOp::Nop as u8, 1));
    wqes[blocks as usize - 1][11] = 2 << 2;
    queue.write(0, wqes.as_flattened()).await?;
    assert_eq!(blocks, NOPS, "a WQE for each request");
    for chain in 1..=chains {
        qp.doorbell(chain.wrapping_mul(blocks)).await?;
        rdma.until(&[On::Cq(&cq)], None).await?;
        for completion in cq.poll(16).await? {
            if completion.status != Status::Success {
                return Err(Error::of(&completion));
            }
        }
    }
    Ok(())
}

/// WQEs of a chain.
const NOPS: u32 = 1024;

/// Millions of NOPs a second.
fn chains(card: &str) -> f64 {
    const CHAINS: u32 = 500;
    // A WQE is written by a program, so there are bytes.
    let config = Config { payload: true, ..pair(card) };
    let mut sim = Sim::new(config).expect("a sound configuration");
    let programs = vec![Start::new("chains", 0, |rdma| nops(rdma, CHAINS))];
    sim.set_programs(Setup { programs, seed: 1, ..Setup::default() });
    let start = cpu_seconds();
    while !sim.programs_ended() && sim.run(u64::MAX, 1_000_000) {}
    let seconds = cpu_seconds() - start;
    assert!(sim.programs_ended() && sim.program_failures().is_empty(), "the chains end");
    f64::from(CHAINS * NOPS) / seconds / 1e6
}

/// Prints one line for each pair of bounds, of medians of so many turns of card and floor; whether all are
/// kept. Rates are bounded as such, and as ratios to a floor of the same run: a processor that makes 2.5 M
/// WRITEs a second between hosts that cost nothing has both alike.
fn hardware(turns: u32) -> bool {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let in_turns = |one: &dyn Fn() -> f64, other: &dyn Fn() -> f64| {
        let (ones, others): (Vec<_>, Vec<_>) = (0..turns).map(|_| (one(), other())).unzip();
        let ratios = ones.iter().zip(&others).map(|(one, other)| one / other).collect();
        (median(ones), median(others), median(ratios))
    };
    let mut all_kept = true;
    let mut verdict = |kept: bool| {
        all_kept &= kept;
        if kept { "kept" } else { "MISSED" }
    };
    let (costly, neutral, ratio) = in_turns(&|| writes("connectx5", WRITES), &|| writes("neutral", WRITES));
    println!(
        "64 B WRITEs, connectx5: {costly:.2} M/s (at least 1: {}), {ratio:.2} of neutral's {neutral:.2} (at \
         least 0.4: {})",
        verdict(costly >= 1.0),
        verdict(ratio >= 0.4)
    );
    let (rate, _, chained) = in_turns(&|| chains("connectx5"), &|| writes("neutral", WRITES));
    println!(
        "chains of NOPs, connectx5: {rate:.2} M WQEs/s (at least 5: {}), {chained:.2} of neutral's WRITEs \
         (at least 2: {})",
        verdict(rate >= 5.0),
        verdict(chained >= 2.0)
    );
    let over = |card: &'static str, n| move || packet_over(card, n);
    let (many, few, grown) = in_turns(&over("connectx6dx", 60_000), &over("connectx6dx", 600));
    println!(
        "a packet over 60,000 connections, connectx6dx: {many:.0} ns, {grown:.2} times 600 connections' \
         {few:.0} ns (at most 1.5: {})",
        verdict(grown <= 1.5)
    );
    let (floor_many, floor_few, floor) = in_turns(&over("neutral", 60_000), &over("neutral", 600));
    println!("its floor, neutral: {floor_many:.0} ns, {floor:.2} times {floor_few:.0} ns");
    println!(
        "{{\"writes\": {costly}, \"writes_neutral\": {neutral}, \"nops\": {rate}, \"packet_60000\": {many}, \
         \"packet_600\": {few}}}"
    );
    all_kept
}

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|a| a == "memory").is_some() {
        let hosts = args.next().map_or(128, |a| a.parse().expect("a number of hosts"));
        let bytes = args.next().map_or(1000, |a| units::parse_bytes(&a).expect("bytes")) as u32;
        return memory(hosts, bytes);
    }
    if args.next_if(|a| a == "hardware").is_some() {
        let turns = args.next().map_or(5, |a| a.parse().expect("a number of turns"));
        std::process::exit(i32::from(!hardware(turns)));
    }
    if args.next_if(|a| a == "writes").is_some() {
        let card = args.next().unwrap_or_else(|| "connectx5".into());
        let count = args.next().map_or(WRITES, |a| a.parse().expect("a number of WRITEs"));
        return println!("{count} WRITEs, {card}: {:.3} M/s", writes(&card, count));
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
