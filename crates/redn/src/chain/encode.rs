//! The bytes of a chain's WQEs, once addresses, keys and numbers are known.

use super::layout::{blocks_of, segments_of};
use super::{
    BLOCK, Bytes, Chain, Done, Form, Layout, NOP_BLOCKS_MAX, OPERAND, Op, Piece, Place, QueueId, RegionId,
    Source, Until, With, Word, Wqe, WqeId,
};
use adverb_nic::queue::wqe::OPMOD_CALC;
use adverb_rdma::Key;

/// Where memory is, and its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Address {
    /// Address of the first byte.
    pub addr: u64,
    /// Key for own entries.
    pub lkey: Key,
    /// Key for whom the queue leads to.
    pub rkey: Key,
}

/// What the loader knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Addresses {
    /// By region.
    pub regions: Vec<Address>,
    /// By queue: its send queue as memory, its queue pair's number, the number of the completion queue of its
    /// sends and of its receives.
    pub queues: Vec<(Address, u32, u32, u32)>,
}

impl Addresses {
    fn region(&self, id: RegionId) -> Address {
        self.regions[usize::from(id.0)]
    }

    fn code(&self, id: QueueId) -> Address {
        self.queues[usize::from(id.0)].0
    }
}

/// What writes a chain.
struct Encoder<'a> {
    chain: &'a Chain,
    layout: &'a Layout,
    addresses: &'a Addresses,
}

/// The bytes of all WQEs, by queue. A recycled queue's are its whole ring.
pub fn encode(chain: &Chain, layout: &Layout, addresses: &Addresses) -> Vec<Vec<u8>> {
    let encoder = Encoder { chain, layout, addresses };
    let of_queue = |q: usize| {
        let queue = QueueId(q as u16);
        let mut bytes = Vec::new();
        for at in 0..chain.queues[q].wqes.len() {
            encoder.wqe(WqeId { queue, at: at as u32 }, &mut bytes);
        }
        let whole = layout.blocks(chain, queue) as usize;
        while bytes.len() / BLOCK < whole {
            let first = bytes.len() / BLOCK;
            let blocks = (whole - first).min(usize::from(NOP_BLOCKS_MAX));
            bytes.resize((first + blocks) * BLOCK, 0);
            bytes[first * BLOCK..][1..3].copy_from_slice(&(first as u16).to_be_bytes());
            bytes[first * BLOCK + 7] = blocks as u8 * 4;
        }
        bytes
    };
    (0..chain.queues.len()).map(of_queue).collect()
}

/// The bytes that are in a region before the chain starts.
pub(crate) fn data(chain: &Chain, layout: &Layout, addresses: &Addresses, bytes: &Bytes) -> Vec<u8> {
    Encoder { chain, layout, addresses }.bytes(bytes)
}

/// Address and keys of a place.
pub(crate) fn address(chain: &Chain, layout: &Layout, addresses: &Addresses, place: Place) -> Address {
    Encoder { chain, layout, addresses }.place(place)
}

impl Encoder<'_> {
    /// Address and keys of a place.
    fn place(&self, place: Place) -> Address {
        match place {
            Place::At(region, at) => {
                let address = self.addresses.region(region);
                Address { addr: address.addr.wrapping_add(at), ..address }
            }
            Place::Of(region) => Address { addr: 0, ..self.addresses.region(region) },
            Place::In(wqe, field, skip) => {
                let address = self.addresses.code(wqe.queue);
                let offset = self.layout.offset(self.chain, wqe, field, skip);
                Address { addr: address.addr.wrapping_add(offset as u64), ..address }
            }
        }
    }

    /// The first 8 bytes of a WQE's control segment in a form.
    fn control(&self, id: WqeId, form: Form) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[1..3].copy_from_slice(&(self.layout.block(id) as u16).to_be_bytes());
        if matches!(self.chain.wqe(id).op, Op::Calc(..)) {
            bytes[0] = OPMOD_CALC;
        }
        let number = self.addresses.queues[usize::from(id.queue.0)].1;
        bytes[4..7].copy_from_slice(&number.to_be_bytes()[1..]);
        if let Some(operand) = form.operand {
            for (at, byte) in OPERAND.into_iter().zip(operand) {
                bytes[usize::from(at)] = byte;
            }
        }
        bytes[3] = form.op as u8;
        bytes[7] = segments_of(self.chain.wqe(id)) as u8;
        bytes
    }

    fn flags(wqe: &Wqe, signaled: bool) -> u8 {
        u8::from(wqe.fence) << 7 | u8::from(signaled) << 3
    }

    fn bytes(&self, bytes: &Bytes) -> Vec<u8> {
        match bytes {
            Bytes::Are(bytes) => bytes.clone(),
            Bytes::Address(place) => self.place(*place).addr.to_be_bytes().to_vec(),
            Bytes::Word(word) => self.word(*word).to_ne_bytes().to_vec(),
            Bytes::Control(id, form) => self.control(*id, *form).to_vec(),
            Bytes::ControlAndFlags(id, form, signaled) => {
                let mut bytes = self.control(*id, *form).to_vec();
                bytes.extend_from_slice(&[0, 0, 0, Self::flags(self.chain.wqe(*id), *signaled)]);
                bytes
            }
        }
    }

    /// A number as the NIC takes it from memory.
    fn word(&self, word: Word) -> u64 {
        match word {
            Word::Is(value) => value,
            Word::Control(id, form) => u64::from_ne_bytes(self.control(id, form)),
            Word::AddressOf(place) => self.place(place).addr,
        }
    }

    /// Appends a WQE.
    fn wqe(&self, id: WqeId, out: &mut Vec<u8>) {
        let wqe = self.chain.wqe(id);
        let start = out.len();
        let form = wqe.posted.unwrap_or(Form::of(wqe.op.code()));
        out.extend_from_slice(&self.control(id, form));
        out.extend_from_slice(&[0, 0, 0, Self::flags(wqe, wqe.signaled)]);
        let immediate = match wqe.op {
            Op::Write(_, _, imm) | Op::Send(_, imm) => imm.unwrap_or(0),
            _ => 0,
        };
        out.extend_from_slice(&immediate.to_be_bytes());
        match &wqe.op {
            Op::Nop(_) => {}
            Op::Wait(done) => self.queue(self.layout.index_of(*done), self.completions(*done), out),
            Op::Enable(until) => {
                let (Until::Through(WqeId { queue, .. }) | Until::Blocks(queue, _)) = *until;
                let number = self.addresses.queues[usize::from(queue.0)].1;
                self.queue(self.layout.end_of(self.chain, *until), number, out);
            }
            Op::EnableReceives(queue, end) => {
                self.queue(*end, self.addresses.queues[usize::from(queue.0)].1, out);
            }
            Op::Write(from, to, _) => {
                self.remote(*to, out);
                self.source(from, out);
            }
            Op::Send(from, _) => self.source(from, out),
            Op::Read(from, into) => {
                self.remote(*from, out);
                into.iter().for_each(|piece| self.piece(*piece, out));
            }
            Op::Calc(calc, from, to) => {
                self.remote(*to, out);
                calc.write(|words| words.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes())));
                from.iter().for_each(|piece| self.piece(*piece, out));
            }
            Op::CompareSwap(at, (compare, swap), old) => {
                self.remote(*at, out);
                out.extend_from_slice(&self.word(*swap).to_be_bytes());
                out.extend_from_slice(&self.word(*compare).to_be_bytes());
                self.piece(*old, out);
            }
            Op::FetchAdd(at, add, old) => {
                self.remote(*at, out);
                out.extend_from_slice(&self.word(*add).to_be_bytes());
                out.extend_from_slice(&[0; 8]);
                self.piece(*old, out);
            }
        }
        out.resize(start + blocks_of(wqe) as usize * BLOCK, 0);
    }

    /// Number of the completion queue that a WAIT looks at.
    fn completions(&self, done: Done) -> u32 {
        match done {
            Done::Of(WqeId { queue, .. }) | Done::Index(queue, _) => {
                self.addresses.queues[usize::from(queue.0)].2
            }
            Done::Received(queue, _) => self.addresses.queues[usize::from(queue.0)].3,
        }
    }

    fn queue(&self, index: u32, number: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&index.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
    }

    fn remote(&self, place: Place, out: &mut Vec<u8>) {
        let address = self.place(place);
        out.extend_from_slice(&address.addr.to_be_bytes());
        out.extend_from_slice(&address.rkey.0.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
    }

    fn piece(&self, piece: Piece, out: &mut Vec<u8>) {
        let address = self.place(piece.place);
        out.extend_from_slice(&piece.len.to_be_bytes());
        out.extend_from_slice(&address.lkey.0.to_be_bytes());
        out.extend_from_slice(&address.addr.to_be_bytes());
    }

    fn source(&self, source: &Source, out: &mut Vec<u8>) {
        match source {
            Source::Pieces(pieces) => pieces.iter().for_each(|piece| self.piece(*piece, out)),
            Source::Inline(bytes) => {
                let bytes = self.bytes(bytes);
                out.extend_from_slice(&(1 << 31 | bytes.len() as u32).to_be_bytes());
                out.extend_from_slice(&bytes);
                out.resize(out.len().next_multiple_of(16), 0);
            }
        }
    }
}

impl Addresses {
    /// Addresses for a chain that is not loaded, so that it can be shown.
    pub fn symbolic(chain: &Chain) -> Addresses {
        let region = |n: usize| {
            let key = Key(0x1000 + n as u32);
            Address { addr: (n as u64 + 1) << 40, lkey: key, rkey: key }
        };
        let queue = |n: usize| {
            let key = Key(0x8000 + n as u32);
            let code = Address { addr: 1 << 56 | (n as u64) << 40, lkey: key, rkey: key };
            // Sends that complete elsewhere are looked for there.
            let sends = match chain.queues[n].completes_with {
                None => 2 * u32::from(n as u16),
                Some(With::Sends(other)) => 2 * u32::from(other.0),
                Some(With::Receives(other)) => 2 * u32::from(other.0) + 1,
            };
            (code, 0x100 + n as u32, sends, 2 * n as u32 + 1)
        };
        Addresses {
            regions: (0..chain.regions.len()).map(region).collect(),
            queues: (0..chain.queues.len()).map(queue).collect(),
        }
    }
}
