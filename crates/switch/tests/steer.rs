//! Requests for chains in, requests for their ends out: what `steer` makes of each, and what clients may try
//! against each other by it (`docs/switch-attacks.md`). `adverb swarm --app chain` has it in networks.

use adverb_switch::steer::Hot;
use adverb_switch::*;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Duration, Flow, Gid, Instant, Key, NakCode, Opcode, Operation, Packet, Psn,
    QpNumber, Reth, Service, Syndrome, WireExtra, verify_ip,
};
use std::net::IpAddr;

const SERVER: u8 = 9;
const RKEY: Key = Key(0x1234);
const ENTRY: u32 = 512;
const NEXT_AT: u32 = 16;
const KEY: u64 = 0x1_0000_0007;
const HOLD: Duration = Duration::from_us(100);
/// Entries by name.
const HEAD: u64 = 0x7000_0000;
const A: u64 = HEAD + 0x200;
const B: u64 = HEAD + 0x400;
const C: u64 = HEAD + 0x600;
const D: u64 = HEAD + 0x800;

fn gid(last: u8) -> Gid {
    Gid::from(format!("10.9.0.{last}").parse::<IpAddr>().unwrap())
}

struct Bench {
    switch: Switch,
    now: Instant,
    /// By client: the next number.
    next: [u32; 6],
}

fn steer(adjust: impl FnOnce(&mut SteerConfig)) -> Result<Program, &'static str> {
    let mut config = SteerConfig {
        next_at: NEXT_AT,
        key_at: 24,
        keys_max: 4,
        entries_max: 1 << 16,
        hold: HOLD,
        link_hold: HOLD,
        links_wait: LinksWait::Always,
        ..SteerConfig::new(gid(SERVER), ENTRY)
    };
    adjust(&mut config);
    ProgramConfig::Steer(config).begin(Instant::ZERO)
}

impl Bench {
    fn new(adjust: impl FnOnce(&mut SteerConfig)) -> Bench {
        let mut switch = Switch::new(vec![steer(adjust).unwrap()], 64).unwrap();
        for last in [1, 2, 3, 4, 5, SERVER] {
            let port = switch.add_port().unwrap();
            switch.claim(port, gid(last)).unwrap();
        }
        Bench { switch, now: Instant::from_ns(20_000_000), next: [0xff_fffe; 6] }
    }

    fn raw(&mut self, from: u8, bytes: Vec<u8>) -> Vec<Packet> {
        self.now += Duration::from_ns(1000);
        let port = if from == SERVER { 5 } else { u16::from(from) - 1 };
        self.switch.on_frame(self.now, PortId(port), bytes);
        self.drain()
    }

    fn drain(&mut self) -> Vec<Packet> {
        self.switch.check_invariants();
        let mut out = Vec::new();
        while let Some((_, bytes)) = self.switch.next_frame() {
            let parsed = Packet::parse_ip(&bytes).unwrap();
            assert!(verify_ip(&bytes, parsed.ip_header_len), "what leaves has a right ICRC");
            out.push(parsed.packet);
        }
        out
    }

    /// Time passes.
    fn wait(&mut self, time: Duration) -> Vec<Packet> {
        self.now += time;
        if self.switch.next_deadline().is_some_and(|at| at <= self.now) {
            self.switch.on_timer(self.now);
        }
        self.drain()
    }

    fn send(&mut self, packet: Packet, payload: &[u8]) -> Vec<Packet> {
        let packet = Packet { payload_len: payload.len() as u32, ..packet };
        let mut bytes = vec![0; packet.frame_len()];
        assert_eq!(packet.emit_frame(&WireExtra::default(), payload, &mut bytes), bytes.len());
        let from = packet.flow.src.0[15];
        self.raw(from, bytes)
    }

    fn request(client: u8, operation: Operation, psn: u32) -> Packet {
        let flow = Flow { src: gid(client), dst: gid(SERVER), ..Flow::default() };
        let opcode = Opcode::new(Service::Rc, operation);
        let dest_qp = QpNumber::new(0x11_0000 + u32::from(client));
        let bth = Bth { opcode, psn: Psn::new(psn), dest_qp, ..Bth::default() };
        Packet { flow, bth, ..Packet::default() }
    }

    fn take(&mut self, client: u8) -> u32 {
        let psn = self.next[usize::from(client)];
        self.next[usize::from(client)] = Psn::new(psn).next().get();
        psn
    }

    fn write_as(&mut self, client: u8, psn: u32, place: u64, key: u64, rkey: Key) -> Vec<Packet> {
        let mut packet = Bench::request(client, Operation::WriteOnly, psn);
        packet.reth = Reth { va: place, rkey, len: ENTRY };
        let mut payload = vec![0; ENTRY as usize];
        payload[24..32].copy_from_slice(&key.to_le_bytes());
        self.send(packet, &payload)
    }

    /// Writes an entry; it always goes where it says.
    fn write(&mut self, client: u8, place: u64, key: u64) {
        let psn = self.take(client);
        let out = self.write_as(client, psn, place, key, RKEY);
        assert_eq!(out.iter().map(|packet| packet.reth.va).collect::<Vec<_>>(), [place]);
    }

    fn link_again(&mut self, client: u8, psn: u32, behind: u64, place: u64) -> Vec<u64> {
        let mut packet = Bench::request(client, Operation::CompareSwap, psn);
        let va = behind + u64::from(NEXT_AT);
        packet.atomic = AtomicEth { va, rkey: RKEY, swap_add: place, compare: 0 };
        let out = self.send(packet, &[]);
        assert!(
            out.iter()
                .all(|out| (out.atomic.swap_add, out.atomic.compare) == (place, 0) && out.bth == packet.bth)
        );
        out.iter().map(|out| out.atomic.va - u64::from(NEXT_AT)).collect()
    }

    /// Links an entry: its number, and behind which ones it goes.
    fn link(&mut self, client: u8, behind: u64, place: u64) -> (u32, Vec<u64>) {
        let psn = self.take(client);
        (psn, self.link_again(client, psn, behind, place))
    }

    fn look_again(&mut self, client: u8, psn: u32, va: u64, len: u32) -> Vec<u64> {
        let mut packet = Bench::request(client, Operation::ReadRequest, psn);
        packet.reth = Reth { va, rkey: RKEY, len };
        self.send(packet, &[]).iter().map(|out| out.reth.va).collect()
    }

    /// Reads an entry, of which the server says that nothing is behind it; which one it was.
    fn look(&mut self, client: u8, place: u64) -> u64 {
        let (psn, out) = self.look_open(client, place);
        assert_eq!(out.len(), 1);
        assert_eq!(self.shows(client, psn, 0), []);
        out[0]
    }

    /// Asks for an entry: its number, and which ones are asked for of the server.
    fn look_open(&mut self, client: u8, place: u64) -> (u32, Vec<u64>) {
        let psn = self.take(client);
        (psn, self.look_again(client, psn, place, ENTRY))
    }

    /// The server answers a READ of an entry with this one behind it; what goes on thereby.
    fn shows(&mut self, client: u8, psn: u32, next: u64) -> Vec<Packet> {
        let mut packet = Bench::request(client, Operation::ReadResponseOnly, psn);
        (packet.flow.src, packet.flow.dst) = (gid(SERVER), gid(client));
        packet.bth.dest_qp = QpNumber::new(0x22_0000 + u32::from(client));
        packet.aeth = Aeth { syndrome: Syndrome::default(), msn: 7 };
        let mut payload = vec![0; ENTRY as usize];
        payload[NEXT_AT as usize..][..8].copy_from_slice(&next.to_le_bytes());
        let mut out = self.send(packet, &payload);
        assert_eq!(out.remove(0).flow.dst, gid(client), "answers pass");
        out
    }

    fn say(
        &mut self,
        client: u8,
        operation: Operation,
        psn: u32,
        syndrome: Syndrome,
        original: u64,
    ) -> Vec<Packet> {
        let mut packet = Bench::request(client, operation, psn);
        (packet.flow.src, packet.flow.dst) = (gid(SERVER), gid(client));
        packet.bth.dest_qp = QpNumber::new(0x22_0000 + u32::from(client));
        packet.aeth = Aeth { syndrome, msn: 7 };
        packet.atomic_original = original;
        let mut out = self.send(packet, &[]);
        let passed = out.iter().position(|out| out.flow.src == gid(SERVER)).map(|at| out.remove(at));
        assert_eq!(passed, Some(packet), "answers pass as they are");
        out
    }

    /// The server answers a compare and swap; what goes on thereby.
    fn answer(&mut self, client: u8, psn: u32, original: u64) -> Vec<u64> {
        let out = self.say(client, Operation::AtomicAcknowledge, psn, Syndrome::default(), original);
        out.iter().map(|out| out.atomic.va - u64::from(NEXT_AT)).collect()
    }

    /// A client puts an entry behind another, and the server does so.
    fn put(&mut self, client: u8, behind: u64, place: u64) -> u64 {
        self.write(client, place, KEY);
        let (psn, out) = self.link(client, behind, place);
        assert_eq!(out.len(), 1);
        self.answer(client, psn, 0);
        out[0]
    }

    /// The chain is HEAD, A, and both clients are known to have the key.
    fn begun() -> Bench {
        Bench::begun_with(|_| {})
    }

    fn begun_with(adjust: impl FnOnce(&mut SteerConfig)) -> Bench {
        let mut bench = Bench::new(adjust);
        assert_eq!(bench.put(1, HEAD, A), HEAD);
        assert_eq!(bench.put(2, A, B), A);
        for client in 3..=5 {
            let psn = bench.take(client);
            let first = bench.look_again(client, psn, HEAD, ENTRY);
            assert_eq!(first, [HEAD], "a queue pair's first request may have been sent before");
        }
        bench
    }

    fn get(&self, counter: Counter) -> u64 {
        self.switch.counters().get(counter)
    }

    fn program(&self) -> &Steer {
        let Program::Steer(program) = &self.switch.programs()[0] else { unreachable!() };
        program
    }

    fn known(&self) -> usize {
        self.program().count_chains().known
    }
}

#[test]
fn links_and_reads_go_to_the_end_of_their_chain() {
    let mut bench = Bench::begun();
    assert_eq!((bench.look(3, HEAD), bench.look(3, A), bench.look(3, B)), (B, B, B));
    assert_eq!(bench.put(1, A, C), B, "behind the entry that client 2 has linked");
    assert_eq!((bench.look(2, B), bench.look(2, C), bench.look(2, HEAD)), (C, C, C));
    let counts = [Counter::SteeredCas, Counter::SteeredReads, Counter::CurrentReads, Counter::ChainsPassed];
    assert_eq!(counts.map(|counter| bench.get(counter)), [1, 4, 2, 2], "{counts:?}");
    assert_eq!(bench.put(1, C, D), C);
    assert_eq!(bench.get(Counter::CurrentCas), 1);
    let lines: Vec<String> = bench.switch.trace().events().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("steered to 0x70000400; out 5")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("the chain ends with 0x70000800")), "{lines:?}");
}

#[test]
fn what_is_not_of_a_chain_leaves_as_it_came() {
    let mut bench = Bench::begun();
    let (other, len) = (Key(0x99), ENTRY);
    for (va, len, to) in [(HEAD, len - 8, HEAD), (HEAD + 8, len, HEAD + 8), (D, len, D)] {
        let psn = bench.take(3);
        assert_eq!(bench.look_again(3, psn, va, len), [to], "{va:#x} {len}");
    }
    for (rkey, swap, compare) in [(RKEY, C, 7), (RKEY, 0, 0), (RKEY, HEAD, 0), (other, C, 0)] {
        bench.write(1, C, KEY);
        let psn = bench.take(1);
        let mut packet = Bench::request(1, Operation::CompareSwap, psn);
        packet.atomic = AtomicEth { va: A, rkey, swap_add: swap, compare };
        let out = bench.send(packet, &[]);
        assert_eq!(out, [packet], "{rkey:?} {swap:#x} {compare}");
    }
    // Another process of the same address has memory of its own.
    let psn = bench.take(3);
    let mut packet = Bench::request(3, Operation::ReadRequest, psn);
    packet.bth.dest_qp = QpNumber::new(0x12_0003);
    packet.reth = Reth { va: HEAD, rkey: RKEY, len: ENTRY };
    assert_eq!(bench.send(packet, &[]), [packet]);
}

#[test]
fn a_link_waits_for_the_one_before_it_and_answers_come_in_chain_order() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    bench.write(2, D, KEY);
    let (first, out) = bench.link(1, A, C);
    assert_eq!(out, [B]);
    let (second, out) = bench.link(2, B, D);
    assert_eq!(out, [0; 0], "B may have a follower");
    // Nobody reads what may still be lost, and what comes behind the one that waits does so, too.
    let (read, out) = bench.look_open(3, HEAD);
    assert_eq!((out, bench.look_open(2, HEAD).1), (vec![], vec![]));
    let out = bench.say(1, Operation::AtomicAcknowledge, first, Syndrome::default(), 0);
    assert_eq!(places(out), [(3, C)], "who only reads is first");
    assert_eq!(places(bench.shows(3, read, 0)), [(2, C), (2, C)], "the link, and the READ behind it");
    assert_eq!(bench.answer(2, second, 0), [0; 0]);
    assert_eq!((bench.look(3, HEAD), bench.get(Counter::Held)), (D, 3));
    // Impatience changes nothing.
    let (_, _) = bench.link(1, C, A);
    assert_eq!(bench.known(), 1);
}

#[test]
fn a_read_waits_for_the_link_under_way_for_a_time() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let (link, out) = bench.link(1, B, C);
    assert_eq!(out, [B]);
    let to = |out: Vec<Packet>| out.iter().map(|out| out.reth.va).collect::<Vec<_>>();
    // Whatever entry of the chain they name, the last one too; but not behind one's own link.
    let waiting = [(3, HEAD), (4, B)].map(|(client, place)| (client, bench.look_open(client, place)));
    assert!(waiting.iter().all(|(_, (_, out))| out.is_empty()));
    assert_eq!((bench.look(1, HEAD), bench.look(5, D)), (B, D), "its own link, and what is of no chain");
    assert_eq!(to(bench.wait(Duration::from_us(50))), [0; 0]);
    assert_eq!(to(bench.say(1, Operation::AtomicAcknowledge, link, Syndrome::default(), 0)), [C, C]);
    waiting.iter().for_each(|(client, (psn, _))| assert_eq!(bench.shows(*client, *psn, 0), []));
    // The link is lost, and its client is silent: they go on to what was linked last.
    bench.write(1, D, KEY);
    bench.link(1, C, D);
    assert_eq!(bench.look_open(3, A).1, [0; 0]);
    assert_eq!(to(bench.wait(HOLD)), [C]);
    assert_eq!(bench.look(3, A), C, "it counts as lost");
    let counts = [Counter::HeldReads, Counter::OverdueReads, Counter::Overdue];
    assert_eq!(counts.map(|counter| bench.get(counter)), [3, 1, 0]);
    // Where they are not to wait, they go to what is acknowledged.
    let mut bench = Bench::begun_with(|config| config.read_hold = Duration::ZERO);
    bench.write(1, C, KEY);
    bench.link(1, B, C);
    assert_eq!((bench.look(3, HEAD), bench.get(Counter::HeldReads)), (B, 0));
}

/// Where requests that go on go to: links by the entry that they go behind.
fn places(out: Vec<Packet>) -> Vec<(u8, u64)> {
    let place = |out: &Packet| match out.bth.opcode.operation().is_atomic() {
        true => out.atomic.va - u64::from(NEXT_AT),
        false => out.reth.va,
    };
    out.iter().map(|out| (out.flow.src.0[15], place(out))).collect()
}

#[test]
fn a_link_waits_for_reads_of_the_entry_that_it_goes_behind_and_those_that_come_later_wait_for_it() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    bench.write(2, D, KEY);
    // One names the end, one is steered there, and one has read it already.
    let ((first, at), (second, steered)) = (bench.look_open(3, B), bench.look_open(4, HEAD));
    assert_eq!((at, steered, bench.look(5, B)), (vec![B], vec![B], B));
    let (link, out) = bench.link(1, B, C);
    assert_eq!(out, []);
    // Who comes now waits for the link, whether it reads or links.
    let ((third, late), (behind, next)) = (bench.look_open(5, B), bench.link(2, B, D));
    assert_eq!((late, next), (vec![], vec![]));
    assert_eq!(bench.shows(3, first, 0), []);
    assert_eq!(
        places(bench.shows(4, second, 0)),
        [(1, B)],
        "the last of them lets the link go, and it alone"
    );
    let out = bench.say(1, Operation::AtomicAcknowledge, link, Syndrome::default(), 0);
    assert_eq!(places(out), [(5, C)], "the next link waits for the READ in its turn");
    assert_eq!(places(bench.shows(5, third, 0)), [(2, C)]);
    assert_eq!(bench.answer(2, behind, 0), [0; 0]);
    let counts = [Counter::HeldLinks, Counter::HeldReads, Counter::OverdueLinks, Counter::OvertakenReads];
    assert_eq!(counts.map(|counter| bench.get(counter)), [2, 1, 0, 0]);
    // Where links are not to wait, they go at once, and an answer shows that one was first.
    let mut bench = Bench::begun_with(|config| config.link_hold = Duration::ZERO);
    bench.write(1, C, KEY);
    let (_, out) = bench.look_open(3, B);
    assert_eq!((out, bench.link(1, B, C).1, bench.get(Counter::HeldLinks)), (vec![B], vec![B], 0));
}

/// A READ of the end, whose answer comes after so long and shows a follower or none.
fn look_for(bench: &mut Bench, time: Duration, next: u64) {
    let (psn, out) = bench.look_open(4, B);
    assert_eq!(out, [B]);
    bench.now += time;
    bench.shows(4, psn, next);
}

#[test]
fn links_wait_where_reads_are_overtaken_while_these_take_long() {
    let held = |time: u64, next: u64, before: u32| {
        let mut bench = Bench::begun_with(|config| config.links_wait = LinksWait::Overtaken);
        look_for(&mut bench, Duration::ZERO, 0);
        (0..before).for_each(|_| look_for(&mut bench, Duration::from_us(time), next));
        bench.write(1, C, KEY);
        let (psn, _) = bench.look_open(3, B);
        let (_, at_once) = bench.link(1, B, C);
        let held = bench.get(Counter::HeldLinks);
        // A link that waited goes with the READ's answer.
        let late = places(bench.shows(3, psn, 0));
        assert_eq!((at_once.len(), late.len() as u64), (1 - held as usize, held));
        held
    };
    assert_eq!(held(20, C, 8), 1);
    assert_eq!(held(20, C, 6), 0, "single ones are overtaken anywhere");
    assert_eq!(held(20, 0, 16), 0, "nobody is overtaken");
    assert_eq!(held(1, C, 16), 0, "the server's port is free");
}

#[test]
fn links_that_wait_are_looked_at_anew_after_some() {
    let mut bench = Bench::begun_with(|config| config.links_wait = LinksWait::Overtaken);
    look_for(&mut bench, Duration::ZERO, 0);
    (0..8).for_each(|_| look_for(&mut bench, Duration::from_us(20), C));
    let (mut end, mut held) = (B, 0);
    for n in 0..40 {
        let next = HEAD + 0x20_0000 + 0x200 * n;
        bench.write(1, next, KEY);
        let (psn, out) = bench.look_open(3, end);
        assert_eq!(out, [end]);
        let (link, out) = bench.link(1, end, next);
        held += u64::from(out.is_empty());
        bench.shows(3, psn, 0);
        bench.say(1, Operation::AtomicAcknowledge, link, Syndrome::default(), 0);
        end = next;
    }
    assert_eq!((held, bench.get(Counter::HeldLinks)), (32, 32));
}

#[test]
fn a_link_does_not_wait_for_a_read_that_is_lost_for_longer_than_reads_take() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    // Nothing was answered yet: it waits for as long as it may.
    let ((_, out), (_, link)) = (bench.look_open(3, B), bench.link(1, B, C));
    assert_eq!((out, link), (vec![B], vec![]));
    assert_eq!(bench.wait(Duration::from_us(97)), []);
    assert_eq!(places(bench.wait(Duration::from_us(5))), [(1, B)]);
    assert_eq!(bench.get(Counter::OverdueLinks), 1);
    // READs take a microsecond here, and never more: a link waits a little longer than that.
    let mut bench = Bench::begun();
    (0..50).for_each(|_| assert_eq!(bench.look(4, B), B));
    bench.write(1, C, KEY);
    bench.write(2, D, KEY);
    let ((lost, _), (link, out)) = (bench.look_open(3, B), bench.link(1, B, C));
    assert_eq!(out, []);
    assert_eq!(places(bench.wait(Duration::from_us(2))), [(1, B)]);
    // It comes again, and goes where it went; nobody waits for it a second time.
    assert_eq!(bench.look_again(3, lost, B, ENTRY), [B]);
    assert_eq!(bench.answer(1, link, 0), [0; 0]);
    assert_eq!(bench.link(2, C, D).1, [C]);
    assert_eq!(bench.shows(3, lost, C), []);
    assert_eq!((bench.get(Counter::OverdueLinks), bench.get(Counter::OvertakenReads)), (1, 1));
}

#[test]
fn a_link_does_not_wait_for_who_has_gone_nor_does_anybody_for_a_link_that_has() {
    // Who reads goes.
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let ((_, out), (_, link)) = (bench.look_open(3, B), bench.link(1, B, C));
    assert_eq!((out, link), (vec![B], vec![]));
    bench.now += Duration::from_ns(1000);
    bench.switch.remove_port(bench.now, PortId(2)).unwrap();
    assert_eq!(places(bench.drain()), [(1, B)]);
    // Who links goes.
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let ((_, out), (_, link), (_, late)) =
        (bench.look_open(3, B), bench.link(1, B, C), bench.look_open(4, B));
    assert_eq!((out, link, late), (vec![B], vec![], vec![]));
    bench.now += Duration::from_ns(1000);
    bench.switch.remove_port(bench.now, PortId(0)).unwrap();
    assert_eq!(places(bench.drain()), [(4, B)]);
    // The end is somewhere else: what the link waited for says nothing any more.
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let ((_, out), (_, link)) = (bench.look_open(3, B), bench.link(1, B, C));
    assert_eq!((out, link), (vec![B], vec![]));
    let psn = bench.take(5);
    let out = bench.write_as(5, psn, B, KEY + 1, RKEY);
    assert_eq!(places(out), [(5, B), (1, B)], "the address is used again");
}

#[test]
fn a_read_of_an_entry_whose_link_is_under_way_waits_for_that() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let (link, _) = bench.link(1, B, C);
    let ((_, out), own) = (bench.look_open(3, C), bench.look(1, C));
    assert_eq!((out, own), (vec![], C), "but not its own client's");
    let out = bench.say(1, Operation::AtomicAcknowledge, link, Syndrome::default(), 0);
    assert_eq!(places(out), [(3, C)]);
    // Not for a link that has not begun.
    bench.write(2, D, KEY);
    assert_eq!(bench.look(4, D), D);
}

#[test]
fn an_end_that_the_table_of_entries_has_forgotten_is_still_part_of_its_chain() {
    let remembers = |bench: &Bench, place: u64| {
        format!("{:?}", bench.program()).contains(&format!("Seen {{ place: {place},"))
    };
    // Some entry of another key takes the place of B, and not that of A.
    let other = |n: u64| {
        let mut bench = Bench::begun_with(|config| config.entries_max = 64);
        assert!(remembers(&bench, A) && remembers(&bench, B));
        bench.write(5, HEAD + 0x10_0000 + 0x200 * n, KEY + 1);
        (!remembers(&bench, B) && remembers(&bench, A)).then_some(bench)
    };
    let mut bench = (0..1000).find_map(other).unwrap();
    assert_eq!(bench.put(1, B, C), B);
    assert_eq!((bench.look(3, A), bench.look(3, HEAD)), (C, C), "who is before it is led to the end");
}

#[test]
fn a_wait_ends_though_the_one_before_it_has_died() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    bench.write(2, D, KEY);
    let (_, out) = bench.link(1, B, C);
    assert_eq!(out, [B]);
    let (psn, out) = bench.link(2, B, D);
    assert_eq!(out, [0; 0]);
    // Sent again while it waits: it is not sent twice.
    assert_eq!(bench.link_again(2, psn, B, D), [0; 0]);
    assert_eq!(bench.wait(Duration::from_us(50)), []);
    let out = bench.wait(HOLD);
    assert_eq!(out.iter().map(|out| out.atomic.va).collect::<Vec<_>>(), [B + u64::from(NEXT_AT)]);
    assert_eq!((bench.get(Counter::Overdue), bench.switch.counters().dropped(Drop::UnderWay)), (1, 1));
    // C's was lost: D is behind B. Its client never was heard of again.
    assert_eq!(bench.answer(2, psn, 0), [0; 0]);
    assert_eq!(bench.look(3, HEAD), D);
    // And when its port has gone, nobody waits for it at all.
    bench.write(1, C, KEY);
    let (_, out) = bench.link(1, D, C);
    assert_eq!(out, [D]);
    bench.write(2, A + 8, KEY);
    let (_, out) = bench.link(2, D, A + 8);
    assert_eq!(out, [0; 0]);
    bench.switch.remove_port(bench.now, PortId(0)).unwrap();
    let out = bench.drain();
    assert_eq!(out.iter().map(|out| out.atomic.va).collect::<Vec<_>>(), [D + u64::from(NEXT_AT)]);
}

/// Told other times it knows its chains, and who waits does so for as long as it is told now.
#[test]
fn a_program_that_is_told_other_times_goes_on() {
    let mut bench = Bench::begun();
    let was = *bench.program().config();
    let tell = |bench: &mut Bench, next: SteerConfig| {
        bench.switch.reload(bench.now, &[Next::Changed(0, ProgramConfig::Steer(next))], 64)
    };
    for factor in [2, 1] {
        bench.write(1, C, KEY);
        bench.write(2, D, KEY);
        let (psn, out) = bench.link(1, B, C);
        assert_eq!(out, [B]);
        let (waiting, out) = bench.link(2, B, D);
        assert_eq!(out, [0; 0]);
        // The second one waits for as long as the first has no answer: until it is lost, by the time.
        let times = SteerConfig { hold: HOLD.times(factor), ..was };
        tell(&mut bench, times).unwrap();
        assert_eq!((*bench.program().config(), bench.known()), (times, 1));
        assert_eq!(bench.link_again(1, psn, B, C), [B], "what was decided stays so");
        let ends = HOLD.times(factor).as_ns() - 10_000;
        assert_eq!(bench.wait(Duration::from_ns(ends)), []);
        assert_eq!(places(bench.wait(Duration::from_us(10))), [(2, B)]);
        // The link was lost after all: the other one has succeeded, and C's client finds that.
        assert_eq!(bench.answer(2, waiting, 0), [0; 0]);
        assert_eq!(bench.look(3, HEAD), D);
        bench = Bench::begun();
    }
    // What is wrong changes nothing.
    assert!(matches!(tell(&mut bench, SteerConfig { hold: Duration::ZERO, ..was }), Err(Error::Program(_))));
    assert_eq!((*bench.program().config(), bench.known()), (was, 1));
    let (read_hold, link_hold) = (Duration::ZERO, Duration::ZERO);
    assert!(was.may_become(&SteerConfig { hold: HOLD.times(3), read_hold, link_hold, ..was }));
    for next in [
        SteerConfig { server: gid(1), ..was },
        SteerConfig { rkey: Some(RKEY), ..was },
        SteerConfig { entry: 2 * ENTRY, ..was },
        SteerConfig { next_at: NEXT_AT + 16, ..was },
        SteerConfig { key_at: 32, ..was },
        SteerConfig { keys_max: 8, ..was },
        SteerConfig { entries_max: 1 << 17, ..was },
        SteerConfig { connections_max: 1 << 11, ..was },
        SteerConfig { hot: Some(Hot { above: 2, decay: HOLD }), ..was },
        SteerConfig { reads: false, ..was },
        SteerConfig { links_wait: LinksWait::Overtaken, ..was },
        SteerConfig { mistake: Some(SteerMistake::Anew), ..was },
    ] {
        assert!(!was.may_become(&next), "{next:?}");
    }
}

#[test]
fn a_repetition_goes_where_it_went() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let (read, out) = bench.look_open(3, HEAD);
    assert_eq!((out, bench.shows(3, read, 0)), (vec![B], vec![]));
    let (psn, out) = bench.link(1, A, C);
    assert_eq!(out, [B]);
    assert_eq!(bench.link_again(1, psn, A, C), [B], "lost behind the switch");
    assert_eq!(bench.answer(1, psn, 0), [0; 0]);
    assert_eq!(bench.link_again(1, psn, A, C), [B], "never behind itself: its answer was lost");
    assert_eq!(bench.look_again(3, read, HEAD, ENTRY), [B]);
    // Of a READ's answer the first of two packets has come: the rest is of the same entry.
    let rest = Psn::new(read).next().get();
    assert_eq!(bench.look_again(3, rest, HEAD + 256, ENTRY - 256), [B + 256]);
    assert_eq!(bench.look_again(3, rest, HEAD, ENTRY), [C], "another READ");
    assert_eq!(bench.shows(3, rest, 0), []);
    assert_eq!(bench.get(Counter::Repeated), 4);
    // What had passed as it was passes so again, whatever is known by now.
    let late = bench.take(4);
    assert_eq!(bench.look_again(4, late, D, ENTRY), [D]);
    assert_eq!(bench.put(1, C, D), C);
    assert_eq!(bench.put(2, D, D + 0x200), D);
    assert_eq!(bench.look_again(4, late, D, ENTRY), [D]);
    assert_eq!(bench.look(4, D), D + 0x200);
}

#[test]
fn an_end_that_is_none_is_forgotten_and_found_again() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let (psn, out) = bench.link(1, A, C);
    assert_eq!(out, [B]);
    // Somebody has linked past the switch.
    assert_eq!(bench.answer(1, psn, 0x9999), [0; 0]);
    assert_eq!((bench.known(), bench.get(Counter::TailsForgotten)), (0, 1));
    assert_eq!(bench.look(3, HEAD), HEAD);
    let (psn, out) = bench.link(1, 0x9999, C);
    assert_eq!(out, [0x9999], "its client has found the end");
    bench.answer(1, psn, 0);
    assert_eq!(bench.look(3, 0x9999), C);
    // Who is before what was past the switch is not sent over it: in which order they are is not known.
    assert_eq!((bench.look(3, HEAD), bench.look(3, B)), (HEAD, B));
    // A refusal that concerns another end says nothing.
    bench.write(1, D, KEY);
    bench.write(2, A, KEY);
    let (slow, out) = bench.link(1, C, D);
    assert_eq!(out, [C]);
    let (fast, _) = bench.link(2, C, A);
    assert_eq!(bench.wait(HOLD).len(), 1, "it has waited long enough");
    bench.answer(2, fast, 0);
    bench.answer(1, slow, A);
    assert_eq!((bench.known(), bench.look(3, C)), (1, A));
    // What the server refuses altogether, too.
    bench.write(1, D, KEY);
    let (psn, _) = bench.link(1, C, D);
    let nak = Syndrome::Nak(NakCode::RemoteAccessError);
    bench.say(1, Operation::Acknowledge, psn, nak, 0);
    assert_eq!((bench.known(), bench.get(Counter::TailsForgotten)), (0, 2));
}

#[test]
fn who_follows_a_chain_never_comes_back() {
    let mut bench = Bench::begun();
    // D was linked, and then C behind it; C's answer is faster, and D's is lost.
    bench.write(1, D, KEY);
    bench.write(2, C, KEY);
    let (slow, out) = bench.link(1, B, D);
    assert_eq!(out, [B]);
    let (psn, _) = bench.link(2, B, C);
    bench.wait(HOLD);
    bench.answer(2, psn, D);
    assert_eq!(bench.known(), 0);
    let (psn, out) = bench.link(2, D, C);
    assert_eq!(out, [D]);
    bench.answer(2, psn, 0);
    assert_eq!(bench.look(3, D), C);
    bench.answer(1, slow, 0);
    assert_eq!((bench.look(3, D), bench.look(3, C)), (C, C), "D is not the end by being heard of late");
}

#[test]
fn a_used_address_is_the_end_of_nothing() {
    let mut bench = Bench::begun();
    bench.write(3, B, KEY + 1);
    assert_eq!((bench.known(), bench.look(4, HEAD)), (0, HEAD));
    assert_eq!(bench.look(4, B), B);
    // The same entry, linked twice at once: the second finds that it is linked.
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    let (first, out) = bench.link(1, B, C);
    assert_eq!(out, [B]);
    let (_, out) = bench.link(1, B, C);
    assert_eq!(out, [0; 0]);
    assert_eq!(bench.answer(1, first, 0), [B], "as it says");
}

#[test]
fn others_names_and_damage_change_nothing() {
    let mut bench = Bench::begun();
    let mut packet = Bench::request(1, Operation::AtomicAcknowledge, 5);
    packet.flow = Flow { src: gid(SERVER), dst: gid(1), ..Flow::default() };
    let mut bytes = vec![0; packet.frame_len()];
    packet.emit_frame(&WireExtra::default(), &[], &mut bytes);
    assert_eq!(bench.raw(4, bytes), [], "an answer from a client's port");
    assert_eq!(bench.switch.counters().dropped(Drop::Source), 1);
    let mut packet = Bench::request(3, Operation::ReadRequest, 9);
    packet.reth = Reth { va: HEAD, rkey: RKEY, len: ENTRY };
    let mut bytes = vec![0; packet.frame_len()];
    packet.emit_frame(&WireExtra::default(), &[], &mut bytes);
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    assert_eq!(bench.raw(3, bytes), []);
    assert_eq!(bench.switch.counters().dropped(Drop::Icrc), 1);
}

#[test]
fn a_key_that_was_not_granted_makes_nobody_wait_and_is_not_steered() {
    let mut bench = Bench::begun();
    // He names the others' key of memory, to which he has no right: the server will refuse all of it.
    bench.write(4, D, KEY);
    let (_, out) = bench.link(4, HEAD, D);
    assert_eq!(out, [HEAD], "not steered before the server has executed one");
    assert_eq!(bench.put(1, A, C), B, "at once");
    // His own key of memory has chains of its own.
    let own = Key(0x77);
    let psn = bench.take(5);
    bench.write_as(5, psn, HEAD, KEY, own);
    assert_eq!((bench.look(3, HEAD), bench.program().count_chains().unknown), (C, 1));
}

#[test]
fn an_entry_of_another_key_says_nothing_of_the_chain_that_it_is_put_into() {
    let mut bench = Bench::begun();
    // He claims key KEY + 1, and links into KEY's chain, where he has the right to.
    bench.write(4, D, KEY + 1);
    let (psn, out) = bench.link(4, B, D);
    assert_eq!(out, [B]);
    bench.answer(4, psn, 0);
    let counts = bench.program().count_chains();
    assert_eq!((counts.known, counts.unknown), (1, 1), "no end of KEY + 1 was learned");
    bench.write(5, C, KEY + 1);
    let (_, out) = bench.link(5, HEAD + 0x4000, C);
    assert_eq!(out, [HEAD + 0x4000], "who uses that key is not led away");
}

#[test]
fn ends_are_shown_and_can_be_forgotten_but_not_set() {
    let mut bench = Bench::begun();
    let now = bench.now;
    let program = &mut bench.switch.programs_mut()[0];
    assert_eq!(program.tables(), ["tails"]);
    assert_eq!(program.entries("tails"), Ok(vec![(KEY, B)]));
    assert_eq!((program.entry("tails", KEY), program.entry("tails", 5)), (Ok(Some(B)), Ok(None)));
    assert!(program.set_entry(now, "tails", KEY, Some(A)).is_err(), "the server alone says what is linked");
    assert_eq!(program.set_entry(now, "tails", KEY, None), Ok(()));
    assert!(program.set_entry(now, "tails", KEY, None).is_err(), "there is none any more");
    assert_eq!((bench.known(), bench.look(3, HEAD)), (0, HEAD));
}

#[test]
fn tables_have_bounds_and_the_silent_make_room() {
    let mut bench = Bench::new(|config| (config.keys_max, config.connections_max) = (2, 2));
    for (n, place) in [A, B, C].into_iter().enumerate() {
        bench.write(1, place, KEY + n as u64);
    }
    assert_eq!(bench.get(Counter::KeysFull), 1);
    bench.write(2, D, KEY);
    bench.write(3, D, KEY);
    assert_eq!(bench.get(Counter::ConnectionsFull), 1);
    bench.wait(Duration::from_ms(1000));
    bench.write(3, D, KEY + 5);
    assert_eq!((bench.get(Counter::ConnectionsFull), bench.get(Counter::KeysFull)), (1, 1));
    assert_eq!(bench.program().connections().count(), 2);
}

#[test]
fn who_lets_many_requests_wait_leaves_room_for_others() {
    let mut bench = Bench::begun();
    bench.write(1, C, KEY);
    bench.write(2, D, KEY);
    bench.link(1, B, C);
    bench.link(2, B, D);
    for _ in 0..200 {
        let psn = bench.take(2);
        bench.look_again(2, psn, HEAD, ENTRY);
    }
    assert_eq!(bench.program().held(), 64);
    assert_eq!(bench.switch.counters().dropped(Drop::HoldRoom), 137);
    assert_eq!(bench.look(3, HEAD), B);
}

#[test]
fn hot_keys_get_the_places_of_cold_ones() {
    let hot = Hot { above: 3, decay: Duration::from_ms(100) };
    let mut bench = Bench::new(|config| (config.keys_max, config.hot) = (1, Some(hot)));
    for n in 0..2 {
        bench.write(1, HEAD + 0x200 * n, KEY);
    }
    assert_eq!(bench.program().count_chains().unknown, 0);
    bench.write(1, A, KEY);
    assert_eq!(bench.program().count_chains().unknown, 1);
    for n in 0..5 {
        bench.write(2, C + 0x200 * n, KEY + 1);
    }
    assert!(bench.get(Counter::KeysFull) > 0, "not hotter by far");
    for n in 0..3 {
        bench.write(2, C + 0x200 * n, KEY + 1);
    }
    let (_, out) = bench.link(2, B, C);
    assert_eq!(out, [B]);
    assert!(format!("{:?}", bench.program()).contains(&format!("key: {}", KEY + 1)), "it has the place");
}

#[test]
fn what_is_wrong_with_a_configuration_is_said() {
    type Adjust = fn(&mut SteerConfig);
    let wrong: [(Adjust, &str); 8] = [
        (|config| config.entry = 12, "entry:"),
        (|config| config.next_at = 4, "next-at:"),
        (|config| config.next_at = ENTRY, "next-at:"),
        (|config| config.key_at = 252, "key-at:"),
        (|config| config.key_at = NEXT_AT + 7, "share bytes"),
        (|config| config.keys_max = 0, "keys:"),
        (|config| config.hold = Duration::ZERO, "hold-us:"),
        (|config| config.hot = Some(Hot { above: 0, decay: HOLD }), "hot:"),
    ];
    for (adjust, said) in wrong {
        let found = steer(adjust).unwrap_err();
        assert!(found.contains(said), "{said}: {found}");
    }
    let both = vec![steer(|_| {}).unwrap(), steer(|_| {}).unwrap()];
    assert_eq!(Switch::new(both, 0).unwrap_err(), Error::ServerTwice(gid(SERVER)));
}

#[test]
fn its_server_does_not_take_writes_for_atomics_and_it_needs_a_switch_that_holds() {
    let bench = Bench::begun();
    assert!(!bench.switch.decides_for(gid(SERVER)));
    let misfits = bench.switch.needs().misfits(Profile::Tofino1);
    let said: Vec<String> = misfits.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|it| it.contains("holds packets")), "{said:?}");
    assert_eq!(bench.switch.needs().misfits(Profile::Software), []);
}
