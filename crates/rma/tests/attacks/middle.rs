//! A man in the middle. The user's messages reach him, since the grant that it uses names his address as the
//! owner's; what he sends on to the owner goes under the user's address, and what the owner answers he hears,
//! while the user drops it: it did not come from whom it asked. So each message is his to hold, to repeat, to
//! change and to put others before. Keys he has none.

use crate::scene::*;
use crate::wire::*;
use adverb_rma::{End, Grant, Op, RegionKey, TransferError};
use adverb_wire::one_rma::{Body, Header, Request, Status, UDP_PORT};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

/// How far the user's only slot has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Idle,
    Requested(Op),
    /// It has sent what was solicited.
    Sent,
}

/// A moment in which a message is held.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub stage: Stage,
    /// For which the owner takes data.
    pub ticket: Option<u32>,
}

pub const IDLE: Hold = Hold { stage: Stage::Idle, ticket: None };

/// What is done to a message that is held: where it goes, and its bytes.
pub type Attack<'a> = &'a mut dyn FnMut(&mut Middle, &Scene, &Hold, (Side, &[u8]));

/// A message to one of the two.
pub type Aimed = (Side, Vec<u8>);

type Counts = BTreeMap<&'static str, u64>;

/// The man in the middle: his sockets, and the messages that he holds.
pub struct Middle {
    /// At his own address, the owner's in the user's eyes.
    relay: UdpSocket,
    /// At the user's address, at another port.
    as_user: UdpSocket,
    tap: Tap,
    hosts: [IpAddr; 2],
    /// Messages that each side was sent by him, and that he was sent by the owner, since the last
    /// [`Middle::begin`].
    sent: [u64; 2],
    received: u64,
    /// Messages taken in by owner and user, and sent by the owner, at that time.
    base: [u64; 3],
    /// Everything that the two have said.
    pub library: Vec<Aimed>,
    /// Requests among them whose tag was right.
    requests: BTreeSet<Vec<u8>>,
    /// Tickets that he has had opened with old ones.
    pub opened: u64,
    nonces: BTreeSet<(Side, Vec<u8>)>,
}

impl Middle {
    pub fn new(scene: &Scene) -> Option<Middle> {
        let hosts = [scene.address(1), scene.address(2)];
        let relay = UdpSocket::bind((scene.address(9), UDP_PORT)).unwrap();
        relay.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let as_user = UdpSocket::bind((hosts[1], 0)).unwrap();
        let mut middle = Middle {
            relay,
            as_user,
            tap: Tap::open(hosts)?,
            hosts,
            sent: [0; 2],
            received: 0,
            base: [0; 3],
            library: Vec::new(),
            requests: BTreeSet::new(),
            opened: 0,
            nonces: BTreeSet::new(),
        };
        middle.begin(scene);
        Some(middle)
    }

    /// Counts from here on: a NIC has begun anew.
    pub fn begin(&mut self, scene: &Scene) {
        (self.sent, self.received, self.base) = ([0; 2], 0, Self::passed(scene));
        self.opened = 0;
        self.tap.take();
    }

    fn passed(scene: &Scene) -> [u64; 3] {
        let (owner, user) = (scene.rma(Side::Owner).counters().0, scene.rma(Side::User).counters().0);
        [owner.rx_messages, user.rx_messages, owner.tx_messages]
    }

    /// Until nothing is on its way: all that he and the owner have sent has been taken in.
    fn settle(&self, scene: &Scene) {
        let counted = || {
            let now = Self::passed(scene);
            [0, 1, 2].map(|i| now[i] - self.base[i])
        };
        let come = comes_about(|| {
            let [owner, user, answers] = counted();
            owner == self.sent[0] && user == self.sent[1] + answers - self.received
        });
        // What was lost, or came from elsewhere, can be told by the numbers only.
        let [owner, user, answers] = counted();
        assert!(
            come,
            "taken in by owner and user: {owner} and {user}; sent to them: {:?}, and {answers} answers, of \
             which {} were kept",
            self.sent, self.received
        );
    }

    fn send(&mut self, (to, bytes): (Side, &[u8])) {
        let socket = if to == Side::Owner { &self.as_user } else { &self.relay };
        let sent = socket.send_to(bytes, (self.hosts[to as usize], UDP_PORT));
        assert_eq!(sent.unwrap(), bytes.len());
        self.sent[to as usize] += 1;
    }

    fn hear_user(&self) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        loop {
            let (len, from) = self.relay.recv_from(&mut bytes).expect("the user says something");
            if from.ip() == self.hosts[1] {
                bytes.truncate(len);
                return bytes;
            }
        }
    }

    /// What the owner has said to the user since the tap was emptied.
    fn hear_owner(&self) -> Vec<Vec<u8>> {
        let said = self.tap.take().into_iter();
        said.filter(|seen| (seen.from, seen.to) == self.hosts.into()).map(|seen| seen.bytes).collect()
    }

    /// Keeps what one of the two has said; no nonce may come twice, in this life or another.
    fn keep(&mut self, from: Side, bytes: &[u8]) {
        let header = Header::parse(bytes).unwrap();
        assert!(self.nonces.insert((from, header.nonce().to_vec())), "a nonce came twice: {header:?}");
        let to = if from == Side::Owner { Side::User } else { Side::Owner };
        self.library.push((to, bytes.to_vec()));
    }

    /// The counter that a message ends in which is not the one that is awaited.
    fn fate(&self, scene: &Scene, hold: &Hold, to: Side, bytes: &[u8]) -> &'static str {
        let header = match Header::parse(bytes) {
            Ok(header) => header,
            Err(error) => return error.name(),
        };
        match (to, header.body) {
            (_, Body::Request(_)) if to == Side::Owner && self.requests.contains(bytes) => "requests",
            (_, Body::Request(request)) => {
                // A NIC's regions here: its completion ring, its memory, and the one that was granted.
                let granted = scene.grant.region().wire();
                let there = request.region >> 16 == granted >> 16 && request.region <= granted;
                if to == Side::Owner && there { "requests_unauthentic" } else { "requests_unknown_region" }
            }
            (Side::Owner, Body::WriteData { ticket, .. }) if hold.ticket == Some(ticket) => {
                "drop_unauthentic"
            }
            (Side::User, body) if slot(&body) == Some(0) => fate_at_slot(hold.stage, body),
            _ => "drop_unexpected",
        }
    }

    /// Sends messages before the one that is held, and looks where each was counted; nothing else may happen.
    pub fn attack(&mut self, scene: &Scene, hold: &Hold, messages: &[Aimed]) {
        for row in messages.chunks(64) {
            let before = [Side::Owner, Side::User].map(|side| scene.counts(side));
            let mut expected = [Counts::new(), Counts::new()];
            for (to, bytes) in row {
                let fate = self.fate(scene, hold, *to, bytes);
                *expected[*to as usize].entry(fate).or_default() += 1;
                if *to == Side::Owner
                    && let Ok(Header { body: Body::Request(request), .. }) = Header::parse(bytes)
                {
                    // The owner's answer, from its own address: a notice, or what was asked for once more.
                    let active = request.slot == 0 && hold.stage != Stage::Idle;
                    let answer = if active { "drop_source" } else { "drop_unexpected" };
                    *expected[1].entry(answer).or_default() += 1;
                    if fate == "requests" {
                        match again(&request) {
                            Some(name) => *expected[0].entry(name).or_default() += 1,
                            None => self.opened += 1,
                        }
                    }
                }
                self.send((*to, bytes));
            }
            self.settle(scene);
            for side in [Side::Owner, Side::User] {
                let now = scene.counts(side);
                let risen = now.iter().map(|(name, n)| (*name, n - before[side as usize][name]));
                let mut risen: Counts = risen.filter(|(_, n)| *n > 0).collect();
                let expected = &expected[side as usize];
                if side == Side::Owner && self.opened > 0 {
                    // Old data may name a ticket that an old request has opened: by chance not unexpected,
                    // and refused for its tag.
                    let sure = expected.get("drop_unauthentic").copied().unwrap_or(0);
                    let more = risen.get("drop_unauthentic").copied().unwrap_or(0).saturating_sub(sure);
                    risen.entry("drop_unauthentic").and_modify(|n| *n -= more);
                    *risen.entry("drop_unexpected").or_default() += more;
                    risen.retain(|_, n| *n > 0);
                }
                assert_eq!(risen, *expected, "counted by the {side:?}, {hold:?}");
            }
        }
        scene.check("under attack");
    }

    /// An operation of the user, with an attack on each message before it goes on. How it ended.
    pub fn run(&mut self, scene: &mut Scene, op: Op, grant: &Grant, at: u64, attack: Attack<'_>) -> End {
        let relayed = Grant::new(scene.address(9).into(), grant.region(), u64::MAX);
        let relayed = relayed.with_key(op, grant.key(op).unwrap().clone());
        let user = scene.user().clone();
        let running = std::thread::spawn(move || {
            let rma = &user.rma;
            rma.block_on(match op {
                Op::Read => rma.read(&relayed, at, &user.near, SINK..SINK + READ),
                Op::Write => rma.write(&relayed, at, &user.near, SOURCE..SOURCE + WRITE),
                Op::Rekey => rma.rekey(&relayed, &RegionKey::new(KEY)),
            })
        });
        self.pass_on(scene, op, attack);
        let end = match running.join().unwrap() {
            Ok(report) => report.end,
            Err(TransferError::Ended(report)) => report.end,
            Err(error) => panic!("{error}"),
        };
        if end.is_ok() && op == Op::Read {
            scene.has_read();
        }
        scene.check("after an operation");
        end
    }

    /// Passes on the messages of an operation.
    fn pass_on(&mut self, scene: &mut Scene, op: Op, attack: Attack<'_>) {
        let requested = Hold { stage: Stage::Requested(op), ticket: None };
        let request = self.hear_user();
        attack(self, scene, &requested, (Side::Owner, &request));
        let answer = self.forward(scene, request);
        let ticket = match Header::parse(&answer).unwrap().body {
            Body::Solicitation { ticket, .. } => Some(ticket),
            _ => None,
        };
        attack(self, scene, &Hold { ticket, ..requested }, (Side::User, &answer));
        if ticket.is_none() {
            return self.back(answer);
        }
        self.back(answer);
        let data = self.hear_user();
        let sent = Hold { stage: Stage::Sent, ticket };
        attack(self, scene, &sent, (Side::Owner, &data));
        let completion = self.forward(scene, data);
        if op == Op::Write {
            scene.has_written();
        }
        attack(self, scene, &Hold { ticket: None, ..sent }, (Side::User, &completion));
        self.back(completion);
    }

    /// Passes a message of the user on, and gives the owner's answer, which the user has dropped. From his
    /// own address it does nothing.
    fn forward(&mut self, scene: &Scene, bytes: Vec<u8>) -> Vec<u8> {
        let is_request = matches!(Header::parse(&bytes).unwrap().body, Body::Request(_));
        let name = if is_request { "requests_unauthentic" } else { "drop_source" };
        let before = scene.count(Side::Owner, name);
        self.relay.send_to(&bytes, (self.hosts[0], UDP_PORT)).unwrap();
        self.sent[0] += 1;
        // The notice comes to the address that asked.
        self.received += is_request as u64;
        self.settle(scene);
        assert_eq!(scene.count(Side::Owner, name), before + 1, "from another address");
        scene.check("after a message from another address");

        let before = scene.count(Side::User, "drop_source");
        self.tap.take();
        self.send((Side::Owner, &bytes));
        self.settle(scene);
        self.keep(Side::User, &bytes);
        let mut answers = self.hear_owner();
        assert_eq!(answers.len(), 1, "one answer");
        assert_eq!(scene.count(Side::User, "drop_source"), before + 1, "not from whom it asked");
        let answer = answers.remove(0);
        let notice = matches!(Header::parse(&answer).unwrap().body, Body::AuthenticationFailure { .. });
        if is_request && !notice {
            self.requests.insert(bytes);
        }
        answer
    }

    /// Passes an answer of the owner on.
    fn back(&mut self, bytes: Vec<u8>) {
        self.send((Side::User, &bytes));
        self.keep(Side::Owner, &bytes);
    }

    /// Has the owner answer each old request once more, and keeps the answers.
    pub fn elicit(&mut self, scene: &Scene) {
        for request in self.requests.clone() {
            self.tap.take();
            self.attack(scene, &IDLE, &[(Side::Owner, request)]);
            let answers = self.hear_owner();
            assert_eq!(answers.len(), 1, "one answer");
            answers.iter().for_each(|answer| self.keep(Side::Owner, answer));
        }
    }
}

/// What the owner counts beside `requests` when one comes again that it has answered: the NIC keeps nothing
/// of it, and serves it again. `None` when it solicits, and will count that nothing came.
fn again(request: &Request) -> Option<&'static str> {
    match request.op {
        _ if request.offset > LEN as u64 => Some("requests_out_of_bounds"),
        Op::Read => Some("reads_served"),
        Op::Write | Op::Rekey => None,
    }
}

/// The slot that a message to a user names.
fn slot(body: &Body) -> Option<u32> {
    match body {
        Body::ReadResponse { slot, .. }
        | Body::Solicitation { slot, .. }
        | Body::Completion { slot, .. }
        | Body::Nack { slot }
        | Body::AuthenticationFailure { slot } => Some(*slot),
        Body::Request(_) | Body::WriteData { .. } => None,
    }
}

/// What becomes of a message for the slot that is in use, whose tag is not right for it.
fn fate_at_slot(stage: Stage, body: Body) -> &'static str {
    let refusal = matches!(body, Body::Nack { .. } | Body::AuthenticationFailure { .. });
    match (stage, body) {
        (Stage::Requested(_), _) if refusal => "drop_unauthentic",
        (Stage::Sent, _) if refusal => "drop_late_refusal",
        (Stage::Requested(Op::Read), Body::ReadResponse { .. }) => "drop_unauthentic",
        (Stage::Requested(Op::Write | Op::Rekey), Body::Solicitation { .. }) => "drop_unauthentic",
        (Stage::Requested(_), Body::Completion { status: Status::Refused, .. }) => "drop_unauthentic",
        (Stage::Sent, Body::Completion { .. }) => "drop_unauthentic",
        _ => "drop_unexpected",
    }
}
