//! Memory windows under StaR's registry, as the oracle's sides use them. A side binds a window over what its
//! peer writes and reads, and the peer names it now and then instead of the region. It ends by another bind
//! (type 1), by LOCAL_INV or by the peer's SEND with invalidate (type 2). As in programs, the rule stands
//! at the peer's NIC before the bind is posted, and goes with the owner's next call after the window's end.
//!
//! A window ends when nothing outstanding names it, and then nobody may see that it did; now and then it ends
//! while something does, which may fail.

use super::rules::{ALL, Region};
use super::side::{self, Wanted};
use super::{Oracle, Room};
use crate::sim::Sim;
use adverb_nic::{Access, MwInfo, MwType, SendData, SendFlags, SendOp, SendWr};
use adverb_wire::{Instant, Key};

/// One request of so many ends or binds a window, where its side has one.
const CHANGE_OF: u32 = 8;
/// One window of so many ends although something outstanding names it.
const CARELESS_OF: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Unbound,
    /// A request binds it under this key.
    Binding {
        wr_id: u64,
        key: Key,
    },
    Bound(Key),
    /// A request of its owner's ends it, or a message of the peer's.
    Ending {
        wr_id: Option<u64>,
    },
}

/// A side's window.
#[derive(Clone, Copy, Debug)]
struct Window {
    info: MwInfo,
    kind: MwType,
    state: State,
    /// The peer's newest request that named it.
    named: Option<u64>,
}

/// The windows of all sides.
pub(super) struct Windows {
    rng: fastrand::Rng,
    of: Vec<Option<Window>>,
    /// Bound, and ended.
    pub counts: [u64; 2],
}

impl Windows {
    pub fn new(seed: u64) -> Windows {
        let rng = fastrand::Rng::with_seed(crate::watch::trace::seed_of(seed, "windows", 0));
        Windows { rng, of: Vec::new(), counts: [0; 2] }
    }

    fn of(&mut self, number: u32) -> Option<&mut Window> {
        self.of.get_mut(number as usize)?.as_mut()
    }
}

impl Sim {
    /// Gives a side that grants something a window, in half of the cases.
    pub(super) fn give_window(&mut self, oracle: &mut Oracle, number: u32) -> Result<(), adverb_nic::Error> {
        let windows = &mut oracle.windows;
        windows.of.resize(windows.of.len().max(number as usize + 1), None);
        if windows.rng.bool() {
            return Ok(());
        }
        let kind = if windows.rng.bool() { MwType::One } else { MwType::Two };
        let host = &mut self.hosts.list[oracle.sides[number as usize].host as usize];
        let info = host.nic.memory().alloc_mw(host.pd, kind)?;
        host.nic.memory().watch_windows();
        oracle.windows.of[number as usize] = Some(Window { info, kind, state: State::Unbound, named: None });
        Ok(())
    }

    /// Posts a side's next request, if that is to bind its window or to end it. Whether it was.
    pub(super) fn post_window(&mut self, oracle: &mut Oracle, number: u32) -> bool {
        let Some(window) = oracle.windows.of(number).copied() else { return false };
        if oracle.windows.rng.u32(0..CHANGE_OF) > 0 {
            return false;
        }
        let h = oracle.sides[number as usize].host;
        self.settle_windows(oracle, h);
        let wr_id = u64::from(oracle.sides[number as usize].posted);
        let binds = match window.state {
            State::Unbound => true,
            // A window of type 2 has to end before it is bound again.
            State::Bound(_) => window.kind == MwType::One && oracle.windows.rng.bool(),
            State::Binding { .. } | State::Ending { .. } => return false,
        };
        if matches!(window.state, State::Bound(_)) && !oracle.may_end(number) {
            return false;
        }
        let op = match (binds, window.state) {
            (true, _) => match self.grant_window(oracle, number, &window) {
                Some((key, op)) => {
                    self.set_window(oracle, number, State::Binding { wr_id, key });
                    op
                }
                None => return false,
            },
            (false, State::Bound(key)) => {
                self.set_window(oracle, number, State::Ending { wr_id: Some(wr_id) });
                match window.kind {
                    MwType::One => unbind(&window),
                    MwType::Two => SendOp::LocalInv(key),
                }
            }
            (false, _) => return false,
        };
        let side = &mut oracle.sides[number as usize];
        side.wanted.push_back((wr_id, Wanted::Done));
        side.posted += 1;
        side.next_at = self.now + oracle.windows.rng.u64(0..=side.gap_ps);
        let flags = SendFlags { signaled: true, fence: oracle.windows.rng.bool(), solicited: false };
        let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&[]), ud: None, xrc_srqn: 0 };
        let nic = &mut self.hosts.list[h as usize].nic;
        let posted = nic.post_send(Instant::from_ps(self.now), side.qp, &wr);
        if self.watch.journal.is_on() {
            let index = side.qp.index();
            let what = match op {
                SendOp::BindMw { len: 0, .. } | SendOp::LocalInv(_) => "ends its window",
                _ => "binds its window",
            };
            let what = format_args!("posts request {wr_id} on queue pair {index}: {what}");
            self.watch.journal.add(self.now, format_args!("host {h}"), what);
        }
        if let Err(error) = posted {
            oracle.fail(format!("side {number}: request {wr_id} cannot be posted: {error:?}"));
        }
        true
    }

    fn set_window(&self, oracle: &mut Oracle, number: u32, state: State) {
        if let Some(window) = oracle.windows.of(number) {
            (window.state, window.named) = (state, None);
        }
    }

    /// Puts the rule of a bind at the peer's NIC: nothing is bound where that has no room for it, or where no
    /// agent could bring it. The key that it will have, and the bind.
    fn grant_window(&mut self, oracle: &mut Oracle, number: u32, window: &Window) -> Option<(Key, SendOp)> {
        let h = oracle.sides[number as usize].host;
        let room = &oracle.rooms[h as usize];
        let addr = room.buffer.addr() + oracle.sides[number as usize ^ 1].slice as u64;
        let len = side::SLICE_BYTES as u64;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let rkey = match window.kind {
            MwType::One => Key(0),
            MwType::Two => Key(oracle.windows.rng.u32(1..256)),
        };
        let bind =
            adverb_nic::memory::MwBind { mw: window.info.id, rkey, lkey: room.mr.lkey, addr, len, access };
        let (_, key) = self.hosts.list[h as usize].nic.memory().foretell(&bind)?;
        if !self.put_window(oracle, number, Region { key, va: addr, len, rights: ALL }) {
            return None;
        }
        Some((key, SendOp::BindMw { mw: bind.mw, rkey, lkey: bind.lkey, addr, len, access }))
    }

    /// A host's program calls: what its peers know of windows that are not bound any more goes.
    pub(super) fn settle_windows(&mut self, oracle: &mut Oracle, h: u32) {
        if !self.hosts.list[h as usize].nic.memory().has_ended_windows() {
            return;
        }
        let ended = self.hosts.list[h as usize].nic.memory().take_ended_windows();
        for number in 0..oracle.sides.len() as u32 {
            if oracle.sides[number as usize].host == h {
                for key in ended.keys() {
                    let had = self.end_window(oracle, number, Key(*key));
                    oracle.windows.counts[1] += u64::from(had);
                }
            }
        }
    }
}

/// The bind that ends a window of type 1.
fn unbind(window: &Window) -> SendOp {
    let access = Access::default();
    SendOp::BindMw { mw: window.info.id, rkey: Key(0), lkey: Key(0), addr: 0, len: 0, access }
}

impl Oracle {
    /// By which key a side's next request names its peer's memory, of those that it may.
    pub(super) fn key_at_peer(&mut self, number: u32) -> Key {
        let wr_id = u64::from(self.sides[number as usize].posted);
        let peer = self.sides[number as usize].peer as usize;
        let Room { mr, .. } = &self.rooms[peer];
        let Some(window) = self.windows.of.get_mut(number as usize ^ 1).and_then(Option::as_mut) else {
            return mr.rkey;
        };
        match window.state {
            State::Bound(key) if self.windows.rng.bool() => {
                window.named = Some(wr_id);
                key
            }
            _ => mr.rkey,
        }
    }

    /// Whether a side's window may end now: nothing outstanding names it, or what does may fail.
    fn may_end(&mut self, number: u32) -> bool {
        let oldest = self.sides[number as usize ^ 1].wanted.front().map(|(wr_id, _)| *wr_id);
        let named = self.windows.of(number).and_then(|window| window.named);
        let in_use = oldest.zip(named).is_some_and(|(oldest, named)| oldest <= named);
        if in_use && self.windows.rng.u32(0..CARELESS_OF) > 0 {
            return false;
        }
        if in_use {
            self.registries.lacks(number);
        }
        true
    }

    /// The key that a side's next SEND invalidates at its peer, if it does. What it has posted before may
    /// name it: the SEND comes after that.
    pub(super) fn invalidated(&mut self, number: u32) -> Option<Key> {
        let window = self.windows.of.get_mut(number as usize ^ 1)?.as_mut()?;
        match (window.kind, window.state) {
            (MwType::Two, State::Bound(key)) if self.windows.rng.u32(0..4) == 0 => {
                (window.state, window.named) = (State::Ending { wr_id: None }, None);
                Some(key)
            }
            _ => None,
        }
    }

    /// A side's request has completed: its window may be bound now, or not any more.
    pub(super) fn window_done(&mut self, number: u32, done: u64) {
        let Some(window) = self.windows.of(number) else { return };
        match window.state {
            State::Binding { wr_id, key } if wr_id == done => {
                window.state = State::Bound(key);
                self.windows.counts[0] += 1;
            }
            State::Ending { wr_id: Some(wr_id) } if wr_id == done => window.state = State::Unbound,
            _ => {}
        }
    }

    /// A message has invalidated a side's window.
    pub(super) fn window_invalidated(&mut self, number: u32) {
        if let Some(window) = self.windows.of(number) {
            window.state = State::Unbound;
        }
    }
}
