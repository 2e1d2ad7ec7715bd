//! Chains made by hand: conditional, else, break, loop, lookup; each in the simulator and on real NICs. What
//! is in memory afterwards, and how many WQEs were executed.

mod common;

use adverb_rdma::{Connect, Cq, Duration, On, Rdma, SendOrder};
use adverb_redn::chain::laps::{Lap, TwoStages};
use adverb_redn::chain::{
    Bytes, Chain, Done, Error, Field, Form, Op, Peer, Place, RegionId, Source, Until, Word, Wqe, parts,
};
use adverb_redn::{Loaded, WqeOp, load, show};
use common::{Said, for_real, in_simulator, text};

/// Makes, connects and starts a chain of queues that lead to the host itself.
async fn started(rdma: &Rdma, chain: Chain) -> Said<Loaded> {
    let pd = rdma.create_pd().await.map_err(text)?;
    let loaded = Loaded::create(rdma, &pd, chain).await.map_err(text)?;
    loaded.connect(&Connect::default()).await.map_err(text)?;
    loaded.start().await.map_err(text)?;
    Ok(loaded)
}

/// Waits until nothing completes there for a while; how many completions came.
async fn settle(rdma: &Rdma, cq: &Cq) -> Said<usize> {
    let mut count = 0;
    loop {
        let limit = rdma.now().await.map_err(text)? + Duration::from_ms(40);
        if rdma.until(&[On::Cq(cq)], Some(limit)).await.map_err(text)?.is_none() {
            return Ok(count);
        }
        for completion in cq.poll(64).await.map_err(text)? {
            if completion.status != adverb_rdma::Status::Success {
                return Err(format!("{completion:?}"));
            }
            count += 1;
        }
    }
}

fn inline(bytes: &[u8]) -> Source {
    Source::Inline(Bytes::Are(bytes.to_vec()))
}

/// What a conditional's chain is: a worker, whose compare-and-swap looks for `x`, and a managed queue with a
/// WRITE that holds `y`.
fn conditional(x: u64, y: u64, otherwise: Option<u64>) -> (Chain, RegionId) {
    let mut chain = Chain::new();
    let memory = chain.memory("memory", 64);
    let worker = chain.queue("worker", SendOrder::Cross, Peer::Itself);
    let target = chain.queue("target", SendOrder::Managed, Peer::Itself);
    // The reply's data is the default; the conditional changes it, before the reply is fetched.
    let reply_of = |value: u64| Wqe::new(Op::Write(inline(&value.to_ne_bytes()), Place::At(memory, 0), None));
    let (then, conditional) = match otherwise {
        None => {
            let then = reply_of(1).posted_as(Form::nop(parts::big(y))).signaled();
            let then = chain.push(target, then);
            (then, then)
        }
        Some(value) => {
            let conditional = chain.next(target);
            let reply = adverb_redn::chain::WqeId { at: conditional.at + 1, ..conditional };
            let change = Op::Write(inline(&1u64.to_ne_bytes()), Place::In(reply, Field::Inline, 0), None);
            chain.push(target, Wqe::new(change).posted_as(Form::nop(parts::big(y))).signaled());
            (chain.push(target, reply_of(value).signaled()), conditional)
        }
    };
    let old = Word::Control(conditional, Form::nop(parts::big(x)));
    let new = Word::Control(conditional, Form::of(WqeOp::Write));
    let test =
        Op::CompareSwap(Place::In(conditional, Field::Control, 0), (old, new), Place::At(memory, 8).piece(8));
    let test = chain.push(worker, Wqe::new(test).signaled());
    chain.push(worker, Wqe::new(Op::Wait(Done::Of(test))));
    chain.push(worker, Wqe::new(Op::Enable(Until::Through(conditional))).signaled());
    if then != conditional {
        chain.push(worker, Wqe::new(Op::Wait(Done::Of(conditional))));
        chain.push(worker, Wqe::new(Op::Enable(Until::Through(then))).signaled());
    }
    (chain, memory)
}

async fn run_conditional(rdma: Rdma, x: u64, y: u64, otherwise: Option<u64>) -> Said<u64> {
    let (chain, memory) = conditional(x, y, otherwise);
    let target = chain.next(adverb_redn::chain::QueueId(1)).queue;
    let expected = chain.queue_of(target).wqes.len();
    let loaded = started(&rdma, chain).await?;
    assert_eq!(settle(&rdma, loaded.completions(target)).await?, expected, "a NOP completes as well");
    loaded.region(memory).ok_or("no memory")?.load(0).await.map_err(text)
}

/// All 48 bits count: another value in any byte of the operand is another value.
#[test]
fn a_compare_and_swap_turns_a_nop_into_a_write_if_all_48_bits_agree() {
    let key = 0x0102_0304_0506;
    assert_eq!(in_simulator(move |rdma| run_conditional(rdma, key, key, None)), 1);
    for bit in 0..48 {
        let other = key ^ 1 << bit;
        assert_eq!(in_simulator(move |rdma| run_conditional(rdma, key, other, None)), 0, "bit {bit}");
    }
    assert_eq!(for_real(10, |rdma| run_conditional(rdma, key, key, None)), 1);
    assert_eq!(for_real(11, |rdma| run_conditional(rdma, key, key + 1, None)), 0);
}

#[test]
fn an_else_is_the_default_that_the_conditional_changes() {
    for (x, result) in [(7, 1), (8, 99)] {
        assert_eq!(in_simulator(move |rdma| run_conditional(rdma, x, 7, Some(99))), result);
        assert_eq!(for_real(12 + x as u8, |rdma| run_conditional(rdma, x, 7, Some(99))), result);
    }
}

/// Looks for x among four values, and stops where it is: the conditional turns on a WRITE that changes the
/// reply's operation and takes its completion away, for which the next step would wait.
async fn run_break(rdma: Rdma, x: u64, values: [u64; 4]) -> Said<(u64, usize)> {
    let mut chain = Chain::new();
    let memory = chain.memory("memory", 64);
    let worker = chain.queue("worker", SendOrder::Cross, Peer::Itself);
    let breaks = chain.queue("breaks", SendOrder::Managed, Peer::Itself);
    let replies = chain.queue("replies", SendOrder::Managed, Peer::Itself);
    for (at, value) in values.into_iter().enumerate() {
        let found = Op::Write(inline(&(at as u64 + 1).to_ne_bytes()), Place::At(memory, 0), None);
        let reply = chain.push(replies, Wqe::new(found).posted_as(Form::of(WqeOp::Nop)).signaled());
        let sent = Source::Inline(Bytes::ControlAndFlags(reply, Form::of(WqeOp::Write), false));
        let leave = Op::Write(sent, Place::In(reply, Field::Control, 0), None);
        let leave = chain.push(breaks, Wqe::new(leave).posted_as(Form::nop(parts::big(value))).signaled());
        let old = Word::Control(leave, Form::nop(parts::big(x)));
        let new = Word::Control(leave, Form::of(WqeOp::Write));
        let place = Place::In(leave, Field::Control, 0);
        let test = Op::CompareSwap(place, (old, new), Place::At(memory, 8).piece(8));
        let test = chain.push(worker, Wqe::new(test).signaled());
        for (done, next) in [(test, leave), (leave, reply)] {
            chain.push(worker, Wqe::new(Op::Wait(Done::Of(done))));
            chain.push(worker, Wqe::new(Op::Enable(Until::Through(next))).signaled());
        }
        chain.push(worker, Wqe::new(Op::Wait(Done::Of(reply))));
    }
    let loaded = started(&rdma, chain).await?;
    let tests = settle(&rdma, loaded.completions(worker)).await?;
    let found = loaded.region(memory).ok_or("no memory")?.load(0).await.map_err(text)?;
    Ok((found, tests))
}

#[test]
fn a_break_ends_the_chain_where_it_is() {
    let values = [11, 22, 33, 44];
    // Each round makes three completions on the worker's queue.
    for (x, found, worked) in [(11, 1, 3), (22, 2, 6), (44, 4, 12), (55, 0, 12)] {
        assert_eq!(in_simulator(move |rdma| run_break(rdma, x, values)), (found, worked), "{x}");
    }
    assert_eq!(for_real(30, |rdma| run_break(rdma, 33, values)), (3, 9));
}

/// Counts up in memory in a recycled loop of two stages, until the count is `last`: the ENABLE that begins
/// the next lap is the conditional.
fn counting(last: u64) -> (Chain, RegionId) {
    let mut chain = Chain::new();
    let memory = chain.memory("memory", 64);
    let count = Place::At(memory, 0);
    let dump = Place::At(memory, 16);
    let stages = TwoStages::new(&mut chain, ["tests", "acts"]);
    let next = stages.next(0);
    let add = Wqe::new(Op::FetchAdd(count, Word::Is(1), dump.plus(8).piece(8)));
    let held = Wqe::new(Op::Read(count, parts::operand(next).to_vec()));
    let enable = Form { op: WqeOp::SendEnable, operand: Some(parts::little(last)) };
    let (old, stop) = (Word::Control(next, enable), Word::Control(next, Form::of(WqeOp::Nop)));
    let test = Op::CompareSwap(Place::In(next, Field::Control, 0), (old, stop), dump.plus(16).piece(8));
    let lap = Lap {
        first: vec![add, held, Wqe::new(test).fenced()],
        second: Vec::new(),
        next: Some(Form { op: WqeOp::SendEnable, operand: Some([0; 6]) }),
    };
    assert_eq!(stages.lay_out(&mut chain, lap, (memory, 8), dump), 8);
    (chain, memory)
}

async fn run_counting(rdma: Rdma, last: u64) -> Said<u64> {
    let (chain, memory) = counting(last);
    let loaded = started(&rdma, chain).await?;
    let memory = loaded.region(memory).ok_or("no memory")?;
    let limit = rdma.now().await.map_err(text)? + Duration::from_ms(100_000);
    loop {
        let seen = memory.load(0).await.map_err(text)?;
        if seen >= last {
            break;
        }
        if rdma.until(&[On::Word(memory, 0, seen)], Some(limit)).await.map_err(text)?.is_none() {
            return Err(format!("it stopped at {seen}"));
        }
    }
    // Nothing counts on.
    rdma.sleep(Duration::from_ms(5)).await.map_err(text)?;
    memory.load(0).await.map_err(text)
}

/// 30,000 laps of two rings of 8 blocks: ENABLEs' indices of 16 bits go round three times, and WAITs' pass
/// 2^8 and 2^14.
#[test]
fn a_recycled_loop_keeps_its_indices_and_ends() {
    for last in [1, 2, 3, 255, 256, 257, 30_000] {
        assert_eq!(in_simulator(move |rdma| run_counting(rdma, last)), last);
    }
    assert_eq!(for_real(40, |rdma| run_counting(rdma, 30_000)), 30_000);
}

#[test]
fn what_a_queue_holds_is_shown_with_its_names() {
    let shown = in_simulator(|rdma| async move {
        let (chain, _) = conditional(0x0102_0304_0506, 7, None);
        let pd = rdma.create_pd().await.map_err(text)?;
        let loaded = Loaded::create(&rdma, &pd, chain).await.map_err(text)?;
        loaded.prepare().await.map_err(text)?;
        let mut shown = Vec::new();
        for queue in [0, 1].map(adverb_redn::chain::QueueId) {
            let code = loaded.code(queue);
            let bytes = code.read(0, code.len() as usize).await.map_err(text)?;
            let (chain, layout, addresses) = (loaded.chain(), loaded.layout(), loaded.addresses());
            let names = show::Names { chain, layout, addresses };
            shown.extend(show::show(&bytes, layout.blocks(chain, queue), Some(names)));
        }
        Ok(shown.into_iter().map(|line| line.text).collect::<Vec<_>>())
    });
    let expected = [
        "cas    target[0].ctrl+0 nop|010203040506 -> write|000000",
        "wait   worker.done[0]",
        "enable target <1  signaled",
        "nop    |000000000007 memory+0 from 0100000000000000  signaled",
    ];
    for (line, expected) in shown.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}, not {expected}");
    }
    assert_eq!(shown.len(), expected.len());
    // Bytes that are no WQE are shown as what they are, and nothing panics.
    let garbage: Vec<u8> = (0..640u32).map(|byte| ((byte * 167) >> 3) as u8).collect();
    assert!(show::show(&garbage, 10, None).iter().any(|line| line.text.contains("no WQE")));
}

#[test]
fn a_chain_with_a_mistake_is_refused_by_its_rule() {
    use adverb_redn::chain::{Layout, WqeId, check};
    let refused = |build: &dyn Fn(&mut Chain)| {
        let mut chain = Chain::new();
        build(&mut chain);
        Layout::of(&chain).and_then(|_| check(&chain)).unwrap_err().to_string()
    };
    let queue = |chain: &mut Chain, order| chain.queue("q", order, Peer::Itself);
    let long = refused(&|chain| {
        let q = queue(chain, SendOrder::Cross);
        for _ in 0..2200 {
            chain.push(q, Wqe::new(Op::Nop(15)));
        }
    });
    assert!(long.contains("takes 33000 blocks: at most 32768"), "{long}");
    let entries = refused(&|chain| {
        let q = queue(chain, SendOrder::Cross);
        let memory = chain.memory("m", 64);
        let into = vec![Place::At(memory, 0).piece(1); 31];
        chain.push(q, Wqe::new(Op::Read(Place::At(memory, 0), into)));
    });
    assert_eq!(entries, "q[0] has 31 scatter entries: at most 30");
    let silent = refused(&|chain| {
        let q = queue(chain, SendOrder::Cross);
        let nop = chain.push(q, Wqe::new(Op::Nop(1)));
        chain.push(q, Wqe::new(Op::Wait(Done::Of(nop))));
    });
    assert_eq!(silent, "q[0] is waited for, but makes no completion");
    let unmanaged = refused(&|chain| {
        let q = queue(chain, SendOrder::Cross);
        chain.push(q, Wqe::new(Op::Enable(Until::Blocks(q, 1))));
    });
    assert_eq!(unmanaged, "queue q is enabled, but is not managed");
    let field = refused(&|chain| {
        let q = queue(chain, SendOrder::Cross);
        let nop = WqeId { queue: q, at: 1 };
        let to = Place::In(nop, Field::RemoteAddress, 0);
        chain.push(q, Wqe::new(Op::Write(inline(b"8 bytes."), to, None)));
        chain.push(q, Wqe::new(Op::Nop(1)));
    });
    assert_eq!(field, "q[1] has no such bytes of its RemoteAddress");
}

/// The NIC takes the first byte of an operand for the operation modifier, if the WQE is executed: then a
/// WRITE would be a calculation, or fail. A NOP and an ENABLE have none.
#[test]
fn an_operand_in_the_modifier_of_a_wqe_that_is_executed_is_refused() {
    use adverb_redn::chain::Layout;
    let laid_out = |op: WqeOp, operand: [u8; 6], how: u8| {
        let mut chain = Chain::new();
        let memory = chain.memory("memory", 64);
        let q = chain.queue("acts", SendOrder::Managed, Peer::Itself);
        let write = Wqe::new(Op::Write(inline(&[1; 8]), Place::At(memory, 0), None));
        let form = Form { op, operand: Some(operand) };
        let posted = if how == 0 { form } else { Form { op, operand: None } };
        let act = chain.push(q, Wqe { line: 7, ..write.posted_as(posted) });
        let control = Place::In(act, Field::Control, 0);
        match how {
            0 => {}
            1 => {
                let (old, new) = (Word::Control(act, Form::nop(operand)), Word::Control(act, form));
                let swap = Op::CompareSwap(control, (old, new), Place::At(memory, 8).piece(8));
                chain.push(q, Wqe::new(swap));
            }
            2 => {
                let restore = Op::Write(Source::Inline(Bytes::Control(act, form)), control, None);
                chain.push(q, Wqe::new(restore));
            }
            3 => {
                let into = parts::operand(act).to_vec();
                chain.push(q, Wqe::new(Op::Read(Place::At(memory, 16), into)));
            }
            _ => chain.receive(q, parts::operand(act).to_vec()),
        }
        Layout::of(&chain).map(drop).map_err(text)
    };
    let rule = |op| {
        Err(format!(
            "line 7: acts[0] is executed as {op}, whose operation modifier is the operand's first byte: it \
             must be 0, or the WQE be posted as a NOP"
        ))
    };
    for how in 0..5 {
        assert_eq!(laid_out(WqeOp::Write, [1, 2, 3, 4, 5, 6], how), rule("Write"), "{how}");
        assert_eq!(laid_out(WqeOp::Nop, [1, 2, 3, 4, 5, 6], how), Ok(()), "{how}");
        assert_eq!(laid_out(WqeOp::SendEnable, [1, 2, 3, 4, 5, 6], how), Ok(()), "{how}");
    }
    assert_eq!(laid_out(WqeOp::CompareSwap, [1, 0, 0, 0, 0, 0], 0), rule("CompareSwap"));
    assert_eq!(laid_out(WqeOp::Read, [1, 0, 0, 0, 0, 0], 0), Ok(()), "the NIC has no modifier of a READ");
    for how in 0..3 {
        assert_eq!(laid_out(WqeOp::Write, [0, 2, 3, 4, 5, 6], how), Ok(()), "{how}");
    }
}

/// Calculations, masked atomics and RECV_EN, as the NIC writes them, are shown by their names.
#[test]
fn what_else_a_queue_may_hold_is_shown() {
    use adverb_redn::chain::{Calc, CalcOp};
    let mut words = [[0u8; 16]; 4];
    let mut shown = |op: WqeOp, modifier: u8, segments: &[[u8; 16]]| {
        words[0] = [0; 16];
        (words[0][0], words[0][3], words[0][7]) = (modifier, op as u8, segments.len() as u8 + 1);
        let bytes: Vec<u8> = words[..1].iter().chain(segments).flatten().copied().collect();
        show::words(&bytes, segments.len() + 1, None)
    };
    let pair = |a: u64, b: u64| {
        let bytes: Vec<u8> = [a.to_be_bytes(), b.to_be_bytes()].concat();
        <[u8; 16]>::try_from(bytes).unwrap_or_default()
    };
    let data = |len: u64, addr: u64| pair(len << 32, addr);
    let mut calc = Vec::new();
    Calc { op: CalcOp::Min, signed: false, big_endian: false, vectors: 2 }.write(|words| {
        calc.push(pair(
            u64::from(words[0]) << 32 | u64::from(words[1]),
            u64::from(words[2]) << 32 | u64::from(words[3]),
        ));
    });
    let min = [pair(0x1000, 0), calc[0], calc[1], data(32, 0x2000)];
    assert_eq!(shown(WqeOp::Write, 0xff, &min), "write  [0x1000] min of 2:  [0x2000]:32");
    let swap = [pair(0x1000, 0), pair(5, 4), pair(0xff, 0xf0), data(8, 0x2000)];
    let expected = "masked_cas [0x1000] 0x4 -> 0x5  bits 0xf0 -> 0xff";
    assert_eq!(shown(WqeOp::MaskedCompareSwap, 9, &swap), expected);
    let add = [pair(0x1000, 0), pair(5, 1 << 47), data(8, 0x2000)];
    assert_eq!(
        shown(WqeOp::MaskedFetchAdd, 9, &add),
        "masked_add [0x1000] += 0x5  no carry out of 0x800000000000"
    );
    assert_eq!(shown(WqeOp::RecvEnable, 0, &[pair(0, 3 << 32 | 0x11)]), "recv_en qp 0x11 <3");
}

/// What a client sends may fill in operands, addresses and lengths, and nothing else: not directly, and not
/// by way of memory.
#[test]
fn a_client_decides_about_operands_addresses_and_lengths_only() {
    use adverb_redn::chain::check;
    let checked = |field: Field, skip: u8, len: u32, conditional: bool, through_memory: bool| {
        let mut chain = Chain::new();
        let memory = chain.memory("m", 64);
        let q = chain.queue("q", SendOrder::Managed, Peer::Client);
        let wqe = Wqe::new(Op::Read(Place::At(memory, 0), vec![Place::At(memory, 32).piece(8)]));
        let wqe = if conditional { wqe.posted_as(Form::nop([0; 6])) } else { wqe };
        let id = chain.push(q, wqe);
        let target = Place::In(id, field, skip).piece(len);
        if through_memory {
            chain.receive(q, vec![Place::At(memory, 8).piece(16)]);
            chain.push(q, Wqe::new(Op::Read(Place::At(memory, 12), vec![target])));
        } else {
            chain.receive(q, vec![target]);
        }
        check(&chain)
    };
    let what = |result: Result<(), Error>| match result {
        Err(Error::Reaches { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    for memory in [false, true] {
        assert_eq!(what(checked(Field::Opcode, 0, 1, true, memory)), "the operation code");
        assert_eq!(what(checked(Field::Control, 4, 4, true, memory)), "the number of segments");
        assert_eq!(what(checked(Field::Control, 2, 2, true, memory)), "the operation code");
        assert_eq!(what(checked(Field::LocalKey(0), 0, 4, true, memory)), "a key");
        assert_eq!(what(checked(Field::RemoteKey, 0, 4, true, memory)), "a key");
        let number = what(checked(Field::Control, 4, 3, false, memory));
        assert!(number.starts_with("the queue pair's number"), "{number}");
        for (field, skip, len) in [
            (Field::Control, 0, 3),
            (Field::Control, 4, 3),
            (Field::RemoteAddress, 0, 8),
            (Field::LocalAddress(0), 0, 8),
            (Field::Count(0), 0, 4),
        ] {
            assert_eq!(checked(field, skip, len, true, memory), Ok(()));
        }
    }
    // The loader refuses it.
    let refused = in_simulator(|rdma| async move {
        let mut chain = Chain::new();
        let q = chain.queue("q", SendOrder::Managed, Peer::Client);
        let nop = chain.push(q, Wqe::new(Op::Nop(1)));
        chain.receive(q, vec![Place::In(nop, Field::Opcode, 0).piece(1)]);
        let pd = rdma.create_pd().await.map_err(text)?;
        Ok(Loaded::create(&rdma, &pd, chain).await.err())
    });
    assert!(matches!(refused, Some(load::Error::Chain(Error::Reaches { byte: 3, .. }))), "{refused:?}");
}
