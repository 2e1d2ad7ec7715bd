//! What hardware costs: every parameter of a host and its NIC, by the name that scenarios give it. Times are
//! picoseconds, rates bits per second, the rest counts. Zero is neutral: no cost, no bound, no state.

/// Defines [`Profile`] and the table of its keys from one list.
macro_rules! profile {
    ($($(#[$doc:meta])* $field:ident = $key:literal, $kind:ident, $neutral:expr;)*) => {
        /// The parameters of one host. See the module for units.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Profile {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Profile {
            /// Costs nothing.
            pub const NEUTRAL: Profile = Profile { $($field: $neutral,)* };
        }

        /// All keys: name, what its value is, and where it stands.
        pub const KEYS: &[Key] = &[$(Key { name: $key, kind: Kind::$kind, field: |p| &mut p.$field },)*];
    };
}

/// A key of `[hardware]`.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// Where it stands.
    pub field: fn(&mut Profile) -> &mut u64,
}

/// What a key's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A time such as `"350ns"`, in ps.
    Time,
    /// A rate such as `"100G"`, in bits per second.
    Rate,
    /// A number.
    Count,
    /// `true` or `false`.
    Flag,
    /// A chance from 0 to 1, in millionths.
    Chance,
    /// `"lru"` or `"random"`: see [`RANDOM`].
    Replacement,
}

/// Value of a parameter that is as another one when it is absent.
pub const AS_OTHER: u64 = u64::MAX;
/// Value of `cache-replacement` for random replacement; 0 is least recently used.
pub const RANDOM: u64 = 1;

profile! {
    /// From a post's end until the NIC knows.
    doorbell = "doorbell", Time, 0;
    /// Once for each doorbell of a cross-channel queue.
    cross_start = "cross-start", Time, 0;
    /// Besides, if its first batch holds a WAIT or an ENABLE.
    cross_load = "cross-load", Time, 0;
    /// From a WQE fetch's start until the WQEs are there.
    fetch = "fetch", Time, 0;
    /// WQEs of the first fetch after idleness.
    fetch_first = "fetch-first", Count, 1;
    /// WQEs of later fetches.
    fetch_batch = "fetch-batch", Count, 1;
    /// Processing units; 0 for one for each queue pair.
    units = "units", Count, 0;
    /// A WQE on its unit.
    execute = "execute", Time, 0;
    /// A WAIT that is met, on its unit.
    wait = "wait", Time, 0;
    /// An ENABLE on its unit.
    enable = "enable", Time, 0;
    /// Between NIC and host memory, each way.
    pcie_rate = "pcie-rate", Rate, 0;
    /// From a payload's transfer until the NIC has it.
    pcie_read = "pcie-read", Time, 0;
    /// From a payload's transfer until a processor sees it.
    pcie_write = "pcie-write", Time, 0;
    /// Payload reads under way at once; 0 for any number.
    pcie_reads = "pcie-reads", Count, 0;
    /// NICs with the same number share one PCIe, each way; 0 for one of its own.
    pcie_group = "pcie-group", Count, 0;
    /// Connections whose state fits on the NIC; 0 for all.
    cache_entries = "cache-entries", Count, 0;
    /// What makes room there.
    cache_replacement = "cache-replacement", Replacement, 0;
    /// Reading a connection's state.
    miss = "miss", Time, 0;
    /// Bytes of a connection's state, each way.
    cache_bytes = "cache-bytes", Count, 0;
    /// State reads that overlap; 0: a miss holds the pipeline.
    cache_fetches = "cache-fetches", Count, 0;
    /// 1: sending and receiving share a pipeline; otherwise each has its own.
    pipelines = "pipelines", Count, 0;
    /// A frame that is sent.
    packet = "packet", Time, 0;
    /// An answer to a READ or an atomic that is sent; if absent, `packet`.
    answer = "answer", Time, AS_OTHER;
    /// A packet that is taken in.
    receive = "receive", Time, 0;
    /// A rule that StaR's stateful side looks up for a packet to a stateless one.
    registry = "registry", Time, 0;
    /// A stateless side's packets look connection state up as others do: what StaR takes away.
    stateless_state = "stateless-state", Flag, 0;
    /// Reading what is posted, for a packet that names it, at StaR's stateless side.
    posted = "posted", Time, 0;
    /// Through the port, each way.
    port = "port", Time, 0;
    /// Bytes that may wait to be taken in; 0 for any number.
    rx_buffer = "rx-buffer", Count, 0;
    /// Chance that a request is late.
    late_chance = "late-chance", Chance, 0;
    /// How late at most.
    late_by = "late-by", Time, 0;
    /// A message that is no atomic, at its queue pair.
    responder = "responder", Time, 0;
    /// Before a READ is answered.
    read_turn = "read-turn", Time, 0;
    /// Of a MAX or MIN, from its data until its frame is ready.
    calc = "calc", Time, 0;
    /// Each receive entry beyond the first.
    scatter = "scatter", Time, 0;
    /// Atomics at once; 0 for any number.
    atomic_slots = "atomic-slots", Count, 0;
    /// For how long a compare and swap holds queue pair, slot and word.
    atomic = "atomic", Time, 0;
    /// The same of a fetch and add; if absent, `atomic`.
    add = "add", Time, AS_OTHER;
    /// From then until its answer is ready.
    atomic_turn = "atomic-turn", Time, 0;
    /// The same of a fetch and add; if absent, `atomic-turn`.
    add_turn = "add-turn", Time, AS_OTHER;
    /// Words that are equal in so many low bits of their addresses are one; 0 for all bits.
    atomic_buckets = "atomic-buckets", Count, 0;
    /// READs and WRITEs of a word that is held wait.
    atomic_excludes = "atomic-excludes", Flag, 0;
    /// A compare and swap of memory on the NIC; if absent, `atomic`.
    atomic_chip = "atomic-chip", Time, AS_OTHER;
    /// A fetch and add of memory on the NIC; if absent, `add`.
    add_chip = "add-chip", Time, AS_OTHER;
    /// `atomic-turn` of memory on the NIC; if absent, that.
    atomic_turn_chip = "atomic-turn-chip", Time, AS_OTHER;
    /// A READ of a word holds it.
    word_read = "word-read", Time, 0;
    /// A WRITE of a word holds it.
    word_write = "word-write", Time, 0;
    /// `word-read` of memory on the NIC; if absent, that.
    word_read_chip = "word-read-chip", Time, AS_OTHER;
    /// `word-write` of memory on the NIC; if absent, that.
    word_write_chip = "word-write-chip", Time, AS_OTHER;
    /// From a completion's transfer until a processor can find it.
    completion = "completion", Time, 0;
    /// Cores of the host; 0 for one for each thread.
    cpu_cores = "cpu-cores", Count, 0;
    /// How long a thread keeps its core while others wait; 0 until it sleeps.
    cpu_slice = "cpu-slice", Time, 0;
    /// A core takes up another thread.
    cpu_switch = "cpu-switch", Time, 0;
    /// From the cause of a wake until the thread runs.
    cpu_wake = "cpu-wake", Time, 0;
    /// A post.
    cpu_post = "cpu-post", Time, 0;
    /// Finding a completion.
    cpu_poll = "cpu-poll", Time, 0;
    /// Finding that memory has changed.
    cpu_spin = "cpu-spin", Time, 0;
    /// Reading a value.
    cpu_copy = "cpu-copy", Rate, 0;
}

impl Default for Profile {
    fn default() -> Self {
        Profile::NEUTRAL
    }
}

/// The kind of a request at its responder, as far as its cost goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

fn or(value: u64, other: u64) -> u64 {
    if value == AS_OTHER { other } else { value }
}

impl Profile {
    /// The NIC of queue pairs costs nothing. Processors are another matter.
    pub fn is_neutral(&self) -> bool {
        let other = Profile { fetch_first: 1, fetch_batch: 1, ..self.without_processors() };
        other == Profile::NEUTRAL
    }

    /// The same NIC in a host whose programs' processors cost nothing.
    pub fn without_processors(&self) -> Profile {
        Profile {
            cpu_cores: 0,
            cpu_slice: 0,
            cpu_switch: 0,
            cpu_wake: 0,
            cpu_post: 0,
            cpu_poll: 0,
            cpu_spin: 0,
            cpu_copy: 0,
            ..*self
        }
    }

    /// WQEs that a NIC of queues that order each other reads at once: first, and later.
    pub fn prefetch(&self) -> (u8, u8) {
        let count = |wqes: u64| wqes.clamp(1, u8::MAX.into()) as u8;
        (count(self.fetch_first), count(self.fetch_batch))
    }

    /// Time that bytes hold PCIe, in ps.
    pub fn transfer(&self, bytes: u64) -> u64 {
        if self.pcie_rate == 0 {
            return 0;
        }
        (u128::from(bytes) * 8_000_000_000_000 / u128::from(self.pcie_rate)) as u64
    }

    /// How long an atomic holds its word.
    pub fn hold(&self, op: AtomicOp, chip: bool) -> u64 {
        match (op, chip) {
            (AtomicOp::CompareSwap, false) => self.atomic,
            (AtomicOp::CompareSwap, true) => or(self.atomic_chip, self.atomic),
            (AtomicOp::FetchAdd, false) => or(self.add, self.atomic),
            (AtomicOp::FetchAdd, true) => or(self.add_chip, or(self.atomic_chip, or(self.add, self.atomic))),
        }
    }

    /// From then until its answer is ready.
    pub fn turn(&self, op: AtomicOp, chip: bool) -> u64 {
        if chip && self.atomic_turn_chip != AS_OTHER {
            return self.atomic_turn_chip;
        }
        match op {
            AtomicOp::CompareSwap => self.atomic_turn,
            AtomicOp::FetchAdd => or(self.add_turn, self.atomic_turn),
        }
    }

    /// How long a READ, or a WRITE, of a word holds it.
    pub fn word(&self, writes: bool, chip: bool) -> u64 {
        match (writes, chip) {
            (false, false) => self.word_read,
            (false, true) => or(self.word_read_chip, self.word_read),
            (true, false) => self.word_write,
            (true, true) => or(self.word_write_chip, self.word_write),
        }
    }

    /// What the port's pipeline takes for a frame that is sent.
    pub fn send(&self, is_answer: bool) -> u64 {
        if is_answer { or(self.answer, self.packet) } else { self.packet }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_a_parameter_of_its_own() {
        for key in KEYS {
            let mut changed = Profile::NEUTRAL;
            *(key.field)(&mut changed) = 77;
            assert_ne!(changed, Profile::NEUTRAL, "{}", key.name);
            let again = KEYS.iter().filter(|other| *(other.field)(&mut changed) == 77).count();
            assert_eq!(again, 1, "{}", key.name);
            let pays_otherwise = key.name.starts_with("cpu-") || key.name.starts_with("fetch-");
            assert_eq!(changed.is_neutral(), pays_otherwise, "{}", key.name);
        }
    }

    #[test]
    fn what_is_absent_is_as_its_neighbour() {
        let p = Profile { atomic: 7, atomic_turn: 3, word_read: 5, packet: 2, ..Profile::NEUTRAL };
        assert_eq!((p.hold(AtomicOp::FetchAdd, true), p.turn(AtomicOp::FetchAdd, true)), (7, 3));
        assert_eq!((p.word(false, true), p.word(true, true), p.send(true)), (5, 0, 2));
        let p = Profile { add: 0, answer: 9, ..p };
        assert_eq!((p.hold(AtomicOp::FetchAdd, false), p.send(true), p.send(false)), (0, 9, 2));
    }
}
