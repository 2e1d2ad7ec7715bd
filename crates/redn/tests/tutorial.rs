//! docs/redn-tutorial.md: an `if` by hand, in ten WQEs.

mod common;

use adverb_rdma::{Connect, Duration, On, Rdma, SendOrder};
use adverb_redn::chain::{
    Bytes, Chain, Done, Field, Form, Op, Peer, Place, QueueId, RegionId, Source, Until, Word, Wqe, parts,
};
use adverb_redn::{Loaded, WqeOp};
use common::{Said, for_real, in_simulator, text};

fn inline(value: u64) -> Source {
    Source::Inline(Bytes::Are(value.to_ne_bytes().to_vec()))
}

/// The page's chain: two conditionals, and a word that says that all is over.
fn tutorial(x: u64, ys: [u64; 2], managed: bool) -> (Chain, RegionId) {
    let mut chain = Chain::new();
    let memory = chain.memory("memory", 64);
    let worker = chain.queue("worker", SendOrder::Cross, Peer::Itself);
    let order = if managed { SendOrder::Managed } else { SendOrder::Cross };
    let target = chain.queue("target", order, Peer::Itself);
    let thens = [0, 1].map(|n| {
        let write = Op::Write(inline(1), Place::At(memory, 8 * n), None);
        let nop = Form::nop(parts::big(ys[n as usize]));
        chain.push(target, Wqe::new(write).posted_as(nop).signaled())
    });
    for then in thens {
        let old = Word::Control(then, Form::nop(parts::big(x)));
        let new = Word::Control(then, Form::of(WqeOp::Write));
        let scratch = Place::At(memory, 32).piece(8);
        let test = Op::CompareSwap(Place::In(then, Field::Control, 0), (old, new), scratch);
        let test = chain.push(worker, Wqe::new(test).signaled());
        chain.push(worker, Wqe::new(Op::Wait(Done::Of(test))));
        if managed {
            chain.push(worker, Wqe::new(Op::Enable(Until::Through(then))));
        }
    }
    chain.push(worker, Wqe::new(Op::Wait(Done::Of(thens[1]))));
    chain.push(worker, Wqe::new(Op::Write(inline(1), Place::At(memory, 16), None)));
    (chain, memory)
}

async fn run(rdma: Rdma, ys: [u64; 2], managed: bool) -> Said<[u64; 2]> {
    let (chain, memory) = tutorial(7, ys, managed);
    let wqes: usize = chain.queues.iter().map(|queue| queue.wqes.len()).sum();
    assert_eq!(wqes, if managed { 10 } else { 8 });
    let pd = rdma.create_pd().await.map_err(text)?;
    let loaded = Loaded::create(&rdma, &pd, chain).await.map_err(text)?;
    loaded.connect(&Connect::default()).await.map_err(text)?;
    if managed {
        loaded.start().await.map_err(text)?;
    } else {
        // The target's doorbell first: it is fetched, and executed, as it was posted.
        loaded.prepare().await.map_err(text)?;
        loaded.qp(QueueId(1)).doorbell(2).await.map_err(text)?;
        rdma.sleep(Duration::from_ms(5)).await.map_err(text)?;
        loaded.qp(QueueId(0)).doorbell(6).await.map_err(text)?;
    }
    let memory = loaded.region(memory).ok_or("no memory")?;
    let limit = rdma.now().await.map_err(text)? + Duration::from_ms(20_000);
    while memory.load(16).await.map_err(text)? == 0 {
        if rdma.until(&[On::Word(memory, 16, 0)], Some(limit)).await.map_err(text)?.is_none() {
            return Err("the chain did not end".to_owned());
        }
    }
    Ok([memory.load(0).await.map_err(text)?, memory.load(8).await.map_err(text)?])
}

#[test]
fn ten_wqes_are_two_conditionals() {
    for (ys, out) in [([7, 8], [1, 0]), ([8, 7], [0, 1]), ([7, 7], [1, 1]), ([1, 2], [0, 0])] {
        assert_eq!(in_simulator(move |rdma| run(rdma, ys, true)), out);
    }
    assert_eq!(for_real(90, |rdma| run(rdma, [7, 8], true)), [1, 0]);
}

/// What is fetched before it is changed is executed as it was.
#[test]
fn without_doorbell_order_a_change_comes_too_late() {
    assert_eq!(in_simulator(|rdma| run(rdma, [7, 7], false)), [0, 0]);
    assert_eq!(for_real(91, |rdma| run(rdma, [7, 7], false)), [0, 0]);
}
