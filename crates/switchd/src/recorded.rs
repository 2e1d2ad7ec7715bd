//! The switch of the process. Whatever may change it goes through here, so that a recording has all of it.

use crate::control::{self, Question};
use crate::shifted::shifted_of;
use crate::tape::{End, Entry, Tape};
use adverb_os::say;
use adverb_switch::{Error, Next, PortId, Switch};
use adverb_wire::{Duration, Gid, Instant};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Deref;

/// While something happens, counts and registers are noted this often.
const STATE_EVERY: Duration = Duration::from_ms(1000);

/// A switch, and the recording of what it is given and gives.
pub struct Recorded {
    switch: Switch,
    tape: Option<Tape>,
    /// Bytes that wait at ports, as far as they have changed since the last frame: only frames ask.
    depths: BTreeMap<PortId, u32>,
    /// When counts and registers are to be noted next.
    state_due: Instant,
    /// Something was recorded since they were.
    is_dirty: bool,
    /// Something was done since all that was to leave has left.
    may_give: bool,
}

impl Deref for Recorded {
    type Target = Switch;

    fn deref(&self) -> &Switch {
        &self.switch
    }
}

impl Recorded {
    /// A switch that has begun with this file's text, and a recording of it, if there is to be one.
    pub fn new(now: Instant, switch: Switch, config: &str, tape: Option<Tape>) -> Recorded {
        let shifted = shifted_of(&switch).into_iter().collect();
        let (depths, state_due) = (BTreeMap::new(), now + STATE_EVERY);
        let mut recorded = Recorded { switch, tape, depths, state_due, is_dirty: false, may_give: false };
        recorded.note(|| Entry::Begin { now, config: config.to_owned(), shifted });
        recorded
    }

    /// Notes what is to happen, where that is wanted.
    fn note(&mut self, entry: impl FnOnce() -> Entry) {
        self.make_room();
        if self.tape.is_some() {
            (self.is_dirty, self.may_give) = (true, true);
            self.write(&entry());
        }
    }

    /// Ends the recording if it has no more room.
    fn make_room(&mut self) {
        if self.tape.as_ref().is_some_and(Tape::is_full) {
            say!("adverb: the recording of the switch is full and ends here");
            self.end(End::Full);
        }
    }

    fn write(&mut self, entry: &Entry) {
        if let Some(tape) = &mut self.tape
            && let Err(e) = tape.add(entry)
        {
            say!("adverb: the recording of the switch ends here: {e}");
            self.tape = None;
        }
    }

    /// Ends the recording.
    pub fn end(&mut self, end: End) {
        if self.tape.is_some() {
            self.write(&Entry::State(state_of(&self.switch)));
            self.write(&Entry::End(end));
        }
        if let Some(Err(e)) = self.tape.take().map(|mut tape| tape.flush()) {
            say!("adverb: the end of the switch's recording was not written: {e}");
        }
    }

    /// Hands what was recorded to the system: what has happened so far is there if the process is killed.
    pub fn flush(&mut self, now: Instant) {
        if self.tape.is_none() || !self.is_dirty {
            return;
        }
        if now >= self.state_due {
            (self.state_due, self.is_dirty) = (now + STATE_EVERY, false);
            self.write(&Entry::State(state_of(&self.switch)));
        }
        if let Some(Err(e)) = self.tape.as_mut().map(Tape::flush) {
            say!("adverb: the recording of the switch ends here: {e}");
            self.tape = None;
        }
    }

    /// See [`Switch::add_port`].
    pub fn add_port(&mut self) -> Result<PortId, Error> {
        self.note(|| Entry::AddPort);
        self.switch.add_port()
    }

    /// See [`Switch::claim`].
    pub fn claim(&mut self, port: PortId, address: Gid) -> Result<(), Error> {
        self.note(|| Entry::Claim(port, address));
        self.switch.claim(port, address)
    }

    /// See [`Switch::remove_port`].
    pub fn remove_port(&mut self, now: Instant, port: PortId) -> Result<(), Error> {
        self.depths.remove(&port);
        self.note(|| Entry::RemovePort(now, port));
        self.switch.remove_port(now, port)
    }

    /// See [`Switch::through`]; what is recorded passes the switch as usual.
    pub fn through(&mut self, from: PortId, bytes: &[u8]) -> Option<(PortId, usize)> {
        match self.tape {
            None => self.switch.through(from, bytes),
            Some(_) => None,
        }
    }

    /// See [`Switch::set_depth`].
    pub fn set_depth(&mut self, port: PortId, bytes: u32) {
        if self.tape.is_some() {
            self.depths.insert(port, bytes);
        }
        self.switch.set_depth(port, bytes);
    }

    /// See [`Switch::on_frame`].
    pub fn on_frame(&mut self, now: Instant, port: PortId, bytes: Vec<u8>) {
        for (port, bytes) in std::mem::take(&mut self.depths) {
            self.note(|| Entry::Depth(port, bytes));
        }
        if self.tape.is_some() {
            self.note(|| Entry::Frame(now, port, bytes.clone()));
        }
        self.switch.on_frame(now, port, bytes);
    }

    /// See [`Switch::on_timer`].
    pub fn on_timer(&mut self, now: Instant) {
        self.note(|| Entry::Timer(now));
        self.switch.on_timer(now);
    }

    /// See [`Switch::next_frame`]. Who takes one takes all that there are.
    pub fn next_frame(&mut self) -> Option<(PortId, Vec<u8>)> {
        // Before it is taken, so that a full recording ends at a state that can be found again.
        self.make_room();
        let given = self.switch.next_frame();
        if self.tape.is_some() {
            match &given {
                Some((port, bytes)) => self.write(&Entry::Out(*port, bytes.clone())),
                None if self.may_give => self.write(&Entry::Drained),
                None => {}
            }
            self.may_give &= given.is_some();
        }
        given
    }

    /// See [`Switch::reload`]; `text` is the file's.
    pub fn reload(&mut self, now: Instant, text: &str, row: &[Next], trace: usize) -> Result<(), Error> {
        self.note(|| Entry::Reload(now, text.to_owned()));
        self.switch.reload(now, row, trace)
    }

    /// Does what somebody who asks wants changed.
    pub fn control(&mut self, now: Instant, question: &Question) -> Result<Value, String> {
        // Questions are numbers and names.
        let text = serde_json::to_string(question).unwrap_or_default();
        self.note(|| Entry::Control(now, text));
        control::change(&mut self.switch, now, question)
    }
}

/// What a switch has counted, and digests of what it remembers, by name.
pub fn state_of(switch: &Switch) -> Vec<(String, u64)> {
    let mut state: Vec<(String, u64)> =
        switch.counters().iter().map(|(name, count)| (name.to_owned(), count)).collect();
    state.push(("recirculated".to_owned(), switch.recirculated()));
    for (port, _, counts) in switch.ports() {
        for (name, count) in [
            ("rx_frames", counts.rx_frames),
            ("rx_bytes", counts.rx_bytes),
            ("tx_frames", counts.tx_frames),
            ("tx_bytes", counts.tx_bytes),
            ("changed", counts.changed),
            ("dropped", counts.dropped),
        ] {
            state.push((format!("port {} {name}", port.0), count));
        }
    }
    state.extend(switch.digests());
    state
}
