//! Which socket of those that share a port (SO_REUSEPORT) gets a datagram: a classic BPF program on the group
//! chooses it by the upper byte of the destination queue pair's number.
//!
//! Without one, the kernel hashes a peer's flow to one socket for good, whoever has it, and whether or not
//! that process runs. Any member may replace the program, without privilege, and it outlives who attached
//! it. It names sockets by their index in the group, which nobody can ask for: a new member gets the next
//! one, and when a member's socket is closed, the last one's index becomes that one. So who wants to know its
//! own sends itself a [`Mark`]: a datagram that is no packet, and that the program gives to the index that it
//! asks for.
//!
//! Queue pair 1 is everybody's. Whose a connection manager's message for it is, the message says: an answer
//! by the upper byte of the communication id that it repeats, a request by its service. So a process that is
//! stopped costs no other one a connection.
//!
//! An index that nobody has falls back to the hash. The program sees a datagram from the BTH on.

use adverb_wire::cm::Attribute;

/// What marks begin with: an opcode that no transport has, and three letters.
const MARK: u32 = u32::from_be_bytes([0xff, b'a', b'd', b'v']);
/// Where a mark says which index it asks for, plus one; 0 goes by the byte that follows it.
const INDEX_AT: usize = 4;
/// Where the upper byte of a destination queue pair's number is in a BTH, and in a mark.
const BYTE_AT: usize = 5;
/// Where a mark's nonce is.
const NONCE_AT: usize = 8;
/// Where a connection manager's message says, behind BTH and DETH, what it is: its attribute.
const ATTRIBUTE_AT: u32 = MAD_AT + adverb_wire::cm::ATTRIBUTE_AT as u32;
/// The upper byte of the id that answers to a SIDR_REQ repeat, and that of all other answers.
const FIRST_ID_AT: u32 = MAD_AT + adverb_wire::cm::FIRST_ID_AT as u32;
const SECOND_ID_AT: u32 = MAD_AT + adverb_wire::cm::SECOND_ID_AT as u32;
/// The lower half of a request's service id.
const SERVICE_AT: u32 = MAD_AT + adverb_wire::cm::SERVICE_AT as u32 + 4;
const MAD_AT: u32 = 20;
/// Listeners that one program can name; requests for others go to any process, which hands them on.
pub const LISTENERS: usize = 1024;
/// Bytes of a mark.
pub const MARK_LEN: usize = 16;
/// Indexes that a mark can ask for are below this.
pub const INDEXES: u16 = 255;

/// A datagram by which a process finds out what the group does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The index that it is to be given to, or none: then it goes where packets of `byte` go.
    pub index: Option<u8>,
    /// The upper byte of queue pair numbers.
    pub byte: u8,
    /// What only its sender knows.
    pub nonce: u64,
}

impl Mark {
    /// As it is sent.
    pub fn emit(&self) -> [u8; MARK_LEN] {
        let mut bytes = [0; MARK_LEN];
        bytes[..INDEX_AT].copy_from_slice(&MARK.to_be_bytes());
        bytes[INDEX_AT] = self.index.map_or(0, |index| index.saturating_add(1));
        bytes[BYTE_AT] = self.byte;
        bytes[NONCE_AT..].copy_from_slice(&self.nonce.to_be_bytes());
        bytes
    }

    /// What was received, if it is a mark.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Mark> {
        if bytes.first() != Some(&MARK.to_be_bytes()[0]) {
            return None;
        }
        let bytes: &[u8; MARK_LEN] = bytes.try_into().ok()?;
        let nonce = bytes[NONCE_AT..].try_into().map(u64::from_be_bytes).ok()?;
        bytes.starts_with(&MARK.to_be_bytes()).then_some(Mark {
            index: bytes[INDEX_AT].checked_sub(1),
            byte: bytes[BYTE_AT],
            nonce,
        })
    }
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const SUBTRACT: u32 = libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;

/// The program that gives packets to the index of their byte, requests for a service (the lower half of its
/// id) to that of its listener, and all others to `other`.
pub(crate) fn program(owners: &[(u8, u8)], listeners: &[(u32, u8)], other: u8) -> Vec<libc::sock_filter> {
    let listeners = &listeners[..listeners.len().min(LISTENERS)];
    // What is behind these two ends in a return or goes on with the owners.
    let of_answers = 6;
    let of_requests = 2 + 2 * listeners.len() as u32;
    let mut code = vec![
        instruction(LOAD_WORD, 0, 0, 0),
        instruction(IF_EQUAL, MARK, 0, 4),
        instruction(LOAD_BYTE, INDEX_AT as u32, 0, 0),
        instruction(IF_EQUAL, 0, 2, 0),
        instruction(SUBTRACT, 1, 0, 0),
        instruction(RETURN_A, 0, 0, 0),
        instruction(LOAD_BYTE, BYTE_AT as u32, 0, 0),
        instruction(IF_EQUAL, 0, 1, 0),
        instruction(JUMP, 2 + of_answers + of_requests, 0, 0),
        instruction(LOAD_HALF, ATTRIBUTE_AT, 0, 0),
        instruction(IF_EQUAL, Attribute::Req as u32, 6, 0),
        instruction(IF_EQUAL, Attribute::SidrReq as u32, 5, 0),
        instruction(IF_EQUAL, Attribute::SidrRep as u32, 2, 0),
        instruction(LOAD_BYTE, SECOND_ID_AT, 0, 0),
        instruction(JUMP, 2 + of_requests, 0, 0),
        instruction(LOAD_BYTE, FIRST_ID_AT, 0, 0),
        instruction(JUMP, of_requests, 0, 0),
        instruction(LOAD_WORD, SERVICE_AT, 0, 0),
    ];
    for &(service, index) in listeners {
        code.push(instruction(IF_EQUAL, service, 0, 1));
        code.push(instruction(RETURN, u32::from(index), 0, 0));
    }
    code.push(instruction(RETURN, u32::from(other), 0, 0));
    for &(byte, index) in owners {
        code.push(instruction(IF_EQUAL, u32::from(byte), 0, 1));
        code.push(instruction(RETURN, u32::from(index), 0, 0));
    }
    code.push(instruction(RETURN, u32::from(other), 0, 0));
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Inbox;
    use crate::socket::{HOP_LIMIT, Run, Socket};
    use std::net::{IpAddr, SocketAddr};

    #[test]
    fn a_mark_is_what_was_sent() {
        for index in [None, Some(0), Some(254)] {
            let mark = Mark { index, byte: 7, nonce: 0x0123_4567_89ab_cdef };
            assert_eq!(Mark::parse(&mark.emit()), Some(mark));
        }
        assert_eq!(Mark::parse(&[]), None);
        assert_eq!(Mark::parse(&[0xff; MARK_LEN]), None);
        assert_eq!(Mark::parse(&Mark { index: None, byte: 7, nonce: 1 }.emit()[..MARK_LEN - 1]), None);
    }

    fn send(to: IpAddr, bytes: &[u8]) {
        let to = SocketAddr::from((to, adverb_wire::ROCE_UDP_PORT));
        let (start, len, frames, traffic_class) = (0, bytes.len(), 1, 0);
        let run = Run { to, start, len, segment: len, frames, traffic_class, hop_limit: HOP_LIMIT };
        assert_eq!(Socket::sender(to.ip()).unwrap().send(&[run], bytes).0, 1);
    }

    fn heard(socket: &Socket) -> Vec<Vec<u8>> {
        let (mut inbox, mut all) = (Inbox::new(), Vec::new());
        while let Ok(1..) = socket.receive(&mut inbox) {
            all.extend(inbox.messages().map(|m| m.bytes.to_vec()));
        }
        all
    }

    /// What the program relies on of the kernel: indexes in the order of binding, a mark goes where it asks,
    /// other datagrams by their sixth byte, and the last member moves into a hole.
    #[test]
    fn the_kernel_gives_datagrams_to_the_index_of_their_byte() {
        for address in [IpAddr::from([127, 0, 44, 1]), "::1".parse().unwrap()] {
            let mut group: Vec<Socket> = (0..4).map(|i| Socket::bind(address, i == 0).unwrap()).collect();
            group[2].steer(&[(10, 0), (11, 1), (12, 2), (13, 3)], &[], 1).unwrap();
            for byte in [10, 11, 12, 13, 200] {
                send(address, &[4, 0, 0, 0, 0, byte, 0, 0, 0, 0, 0, 0]);
            }
            for index in 0..4 {
                send(address, &Mark { index: Some(index), byte: 0, nonce: index.into() }.emit());
            }
            send(address, &Mark { index: None, byte: 13, nonce: 9 }.emit());
            let got: Vec<Vec<Vec<u8>>> = group.iter().map(heard).collect();
            let bytes = |i: usize| got[i].iter().filter(|d| d.len() == 12).map(|d| d[5]).collect::<Vec<_>>();
            assert_eq!(
                [bytes(0), bytes(1), bytes(2), bytes(3)],
                [vec![10], vec![11, 200], vec![12], vec![13]]
            );
            let marks =
                |i: usize| got[i].iter().filter_map(|d| Mark::parse(d)).map(|m| m.nonce).collect::<Vec<_>>();
            assert_eq!([0, 1, 2, 3].map(marks), [vec![0], vec![1], vec![2], vec![3, 9]]);
            drop(group.remove(1));
            send(address, &Mark { index: Some(1), byte: 0, nonce: 0 }.emit());
            let counts: Vec<usize> = group.iter().map(|socket| heard(socket).len()).collect();
            assert_eq!(counts, [0, 0, 1], "the last one has the index of the one that is gone");
        }
    }

    /// A datagram for queue pair 1 with a message of this kind, whose ids and service are in the places that
    /// the kind has for them.
    fn management(attribute: Attribute, first: u32, second: u32, service: u64) -> Vec<u8> {
        let mut bytes = vec![0; 20 + adverb_wire::cm::MAD_LEN + 4];
        (bytes[0], bytes[7]) = (0x64, 1);
        bytes[36..38].copy_from_slice(&(attribute as u16).to_be_bytes());
        bytes[44..48].copy_from_slice(&first.to_be_bytes());
        bytes[48..52].copy_from_slice(&second.to_be_bytes());
        if matches!(attribute, Attribute::Req | Attribute::SidrReq) {
            bytes[52..60].copy_from_slice(&service.to_be_bytes());
        }
        bytes
    }

    /// Which of the four gets each message, by its kind.
    #[test]
    fn the_kernel_gives_messages_of_connection_managers_to_whom_they_are_for() {
        let address = IpAddr::from([127, 0, 44, 2]);
        let group: Vec<Socket> = (0..4).map(|i| Socket::bind(address, i == 0).unwrap()).collect();
        let services: Vec<(u32, u8)> =
            (0..LISTENERS as u32).map(|port| (0x0106_0000 + port, (port % 3) as u8)).collect();
        for listeners in [&services[..2], &services[..]] {
            group[2].steer(&[(10, 0), (11, 1), (12, 2)], listeners, 3).unwrap();
            let (ten, eleven, service) = (10 << 24 | 77, 11 << 24 | 78, 0x0106_0001);
            for (attribute, index) in [
                (Attribute::Req, 1),
                (Attribute::SidrReq, 1),
                (Attribute::SidrRep, 0),
                (Attribute::Rep, 1),
                (Attribute::Rtu, 1),
                (Attribute::Rej, 1),
                (Attribute::Mra, 1),
                (Attribute::Dreq, 1),
                (Attribute::Drep, 1),
            ] {
                send(address, &management(attribute, ten, eleven, service));
                let counts: Vec<usize> = group.iter().map(|socket| heard(socket).len()).collect();
                assert_eq!(counts.iter().position(|count| *count == 1), Some(index), "{attribute:?}");
            }
            // A service that nobody has, a port that is another space's, an id of nobody.
            send(address, &management(Attribute::Req, ten, eleven, 0x0106_ffff));
            send(address, &management(Attribute::Req, ten, eleven, 0x0111_0001));
            send(address, &management(Attribute::Rep, ten, 99 << 24, 0));
            assert_eq!(group.iter().map(|socket| heard(socket).len()).collect::<Vec<_>>(), [0, 0, 0, 3]);
        }
    }
}
