//! Doorbell records: words in memory by which a program that writes WQEs itself tells how far its send
//! queues go, without a call. Nobody is told when one is written, so they are looked at in every call and
//! every round, and by the progress thread every [`LOOK`] while there are any.

use adverb_nic::memory::QueueMemory;
use adverb_nic::{Error, Nic, QpId};
use adverb_os::say;
use adverb_wire::{Duration, Instant};

/// How long a record may stay unseen while the program makes no call.
const LOOK: Duration = Duration::from_us(50);
/// A line for the two records, and one for the register that hardware has beside them.
const BYTES: usize = 128;
/// The send queue's record stands behind the receive queue's.
const SEND: usize = 4;

/// A queue pair's records. The queue pair may be gone: then its number names none.
struct Record {
    qp: QpId,
    memory: QueueMemory,
    /// The last value that was refused, so that it is said once.
    refused: Option<u16>,
}

/// The records of a process.
#[derive(Default)]
pub struct Doorbells {
    list: Vec<Record>,
    looked: Option<Instant>,
}

impl Doorbells {
    /// Whether there are none: all that a program pays that has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The address of a queue pair's records: a receive queue's, which is not looked at, and a send queue's.
    /// The queue then is one whose blocks are used in their order.
    pub fn record(&mut self, nic: &mut Nic, qp: QpId) -> Result<u64, Error> {
        if let Some(record) = self.list.iter().find(|record| record.qp == qp) {
            return Ok(record.memory.addr());
        }
        nic.send_queue_memory(qp)?;
        let next = nic.next_block(qp)?;
        let memory = QueueMemory::new(BYTES)?;
        memory.write(SEND, &(next & 0xffff).to_be_bytes());
        let addr = memory.addr();
        self.list.push(Record { qp, memory, refused: None });
        Ok(addr)
    }

    /// A queue pair begins again at its first block.
    pub fn reset(&mut self, qp: QpId) {
        if let Some(record) = self.list.iter_mut().find(|record| record.qp == qp) {
            record.memory.write(0, &[0; 2 * SEND]);
            record.refused = None;
        }
    }

    /// Rings for every record that is ahead of its queue. Records hold the low 16 bits of a count of blocks,
    /// of which a queue has at most half as many; one that is not ahead was passed by posts.
    #[cold]
    pub fn look(&mut self, nic: &mut Nic, now: Instant) {
        self.looked = Some(now);
        self.list.retain_mut(|record| {
            let Ok(next) = nic.next_block(record.qp) else { return false };
            let count = record.memory.read_u32_be(SEND) as u16;
            let ahead = count.wrapping_sub(next as u16);
            if ahead == 0 || ahead as i16 <= 0 || record.refused == Some(count) {
                return true;
            }
            record.refused = None;
            if let Err(error) = nic.on_doorbell(now, record.qp, next.wrapping_add(ahead.into())) {
                record.refused = Some(count);
                say!("adverb: a doorbell record of {count} is refused, {ahead} blocks ahead: {error}");
            }
            true
        });
    }

    /// When they want to be looked at even if nothing happens.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.looked.map(|looked| looked + LOOK) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_nic::{NicConfig, QpAttr, QpAttrMask, QpCaps, QpInit, QpState};

    /// A NIC with a queue pair in ERR, which takes doorbells and flushes what they cover.
    fn nic() -> (Nic, QpId) {
        let mut nic = Nic::new(NicConfig::default(), 1);
        let pd = nic.memory().alloc_pd().expect("a domain");
        let cq = nic.create_cq(16).expect("a queue");
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit::rc(pd, cq, caps);
        let qp = nic.create_qp(&init).expect("a queue pair");
        let attr = QpAttr { state: QpState::Err, ..nic.query_qp(qp).expect("alive").0 };
        nic.modify_qp(Instant::ZERO, qp, &attr, QpAttrMask::STATE).expect("ERR");
        (nic, qp)
    }

    fn write(bells: &Doorbells, count: u16) {
        bells.list[0].memory.write(SEND, &u32::from(count).to_be_bytes());
    }

    #[test]
    fn a_record_rings_once_and_only_forwards() {
        let (mut nic, qp) = nic();
        let mut bells = Doorbells::default();
        assert_eq!(bells.deadline(), None);
        let addr = bells.record(&mut nic, qp).expect("a record");
        assert_eq!(bells.record(&mut nic, qp), Ok(addr), "the same one");
        for (count, next) in [(0, 0), (3, 3), (3, 3), (2, 3), (11, 11), (20, 11), (12, 12)] {
            write(&bells, count);
            bells.look(&mut nic, Instant::ZERO);
            assert_eq!(nic.next_block(qp), Ok(next), "after {count}");
            while let Ok(Some(_)) = nic.poll_cq(nic.query_qp(qp).expect("alive").1.send_cq.expect("a queue"))
            {
            }
        }
        assert_eq!(bells.deadline(), Some(Instant::ZERO + LOOK));
        bells.reset(qp);
        assert_eq!(bells.list[0].memory.read_u32_be(SEND), 0);
    }

    #[test]
    fn the_record_of_a_queue_pair_that_is_gone_goes() {
        let (mut nic, qp) = nic();
        let mut bells = Doorbells::default();
        bells.record(&mut nic, qp).expect("a record");
        nic.destroy_qp(qp).expect("destroyed");
        bells.look(&mut nic, Instant::ZERO);
        assert!(bells.is_empty());
        assert!(bells.record(&mut nic, qp).is_err());
    }
}
