//! What a running chain changes of itself, and when: looked at from the side, over any driver.
//!
//! A program that runs beside the chain on the same host reads its WQEs again and again, and compares. In a
//! simulator looking costs nothing, so that each change has its time; on a real NIC changes that come between
//! two looks have one time.

use crate::chain::{BLOCK, Chain, QueueId, WqeId};
use crate::load::{Error, Loaded};
use crate::show::{Names, fields, short};
use adverb_rdma::{Duration, Instant, Rdma, Status};

/// Something that was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// Of which WQE.
    pub wqe: WqeId,
    /// The line of the program that the WQE comes from.
    pub line: u32,
    /// What.
    pub what: String,
}

/// Looks at a chain, and keeps what it looked like.
pub struct Trace {
    code: Vec<Vec<u8>>,
    /// By queue: the WQEs that complete there, and how many have.
    completing: Vec<(Vec<WqeId>, usize)>,
    /// What was seen.
    pub events: Vec<Event>,
}

impl Trace {
    /// A chain as it is before it starts.
    pub async fn of(loaded: &Loaded) -> Result<Trace, Error> {
        let chain = loaded.chain();
        let mut code = Vec::new();
        let mut completing = Vec::new();
        for (q, queue) in chain.queues.iter().enumerate() {
            let id = QueueId(q as u16);
            code.push(loaded.code(id).read(0, loaded.code(id).len() as usize).await?);
            // A ring's completions come round and round, and say nothing new.
            let own = !queue.recycled && queue.completes_with.is_none();
            let wqes = queue.wqes.iter().enumerate().filter(|(_, wqe)| own && wqe.signaled);
            completing.push((wqes.map(|(at, _)| WqeId { queue: id, at: at as u32 }).collect(), 0));
        }
        Ok(Trace { code, completing, events: Vec::new() })
    }

    /// Looks once.
    pub async fn look(&mut self, rdma: &Rdma, loaded: &Loaded) -> Result<(), Error> {
        let chain = loaded.chain();
        let at = rdma.now().await?;
        for q in 0..chain.queues.len() {
            let id = QueueId(q as u16);
            let bytes = loaded.code(id).read(0, self.code[q].len()).await?;
            if bytes != self.code[q] {
                self.changes(loaded, id, &bytes, at);
                self.code[q] = bytes;
            }
            let (wqes, done) = &mut self.completing[q];
            if wqes.is_empty() {
                continue;
            }
            for completion in loaded.completions(id).poll(64).await? {
                let Some(wqe) = wqes.get(*done).copied() else { break };
                *done += 1;
                let what = match completion.status {
                    Status::Success => "done".to_owned(),
                    status => format!("failed: {status:?}, vendor syndrome {:#x}", completion.vendor),
                };
                self.events.push(Event { at, wqe, line: chain.wqe(wqe).line, what });
            }
        }
        Ok(())
    }

    /// Looks every so often, until it is told to end.
    pub async fn follow(
        &mut self,
        rdma: &Rdma,
        loaded: &Loaded,
        step: Duration,
        until: Instant,
    ) -> Result<(), Error> {
        while rdma.now().await? < until {
            self.look(rdma, loaded).await?;
            rdma.sleep(step).await?;
        }
        Ok(())
    }

    fn changes(&mut self, loaded: &Loaded, queue: QueueId, bytes: &[u8], at: Instant) {
        let (chain, layout) = (loaded.chain(), loaded.layout());
        let names = Names { chain, layout, addresses: loaded.addresses() };
        let old = &self.code[usize::from(queue.0)];
        for n in 0..chain.queue_of(queue).wqes.len() {
            let wqe = WqeId { queue, at: n as u32 };
            let start = layout.block(wqe) as usize * BLOCK;
            for (label, first, len) in fields(chain.wqe(wqe)) {
                let part = start + first..start + first + len;
                if old.get(part.clone()) != bytes.get(part.clone()) {
                    let what = format!(
                        "{label} = {}, was {}",
                        names.value(label, &bytes[part.clone()]),
                        names.value(label, &old[part])
                    );
                    self.events.push(Event { at, wqe, line: chain.wqe(wqe).line, what });
                }
            }
        }
    }
}

/// An event in words, at so long after the beginning.
pub fn words(chain: &Chain, event: &Event, begin: Instant) -> String {
    let us = event.at.since(begin).as_ps() as f64 / 1e6;
    let line = if event.line > 0 { format!("line {}", event.line) } else { String::new() };
    format!("{us:>9.3}  {:<8} {:<8} {}", short(chain, event.wqe), line, event.what)
}
