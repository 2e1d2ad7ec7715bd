//! What the switch counts, by name.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)*) => {
        /// Something that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])+ $name,)* }

        impl Counter {
            /// All of them, in order.
            pub const ALL: &[Counter] = &[$(Counter::$name,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$name => $text,)* }
            }
        }
    };
}

counters! {
    /// Frames that came in.
    RxFrames = "rx_frames",
    /// Frames that left.
    TxFrames = "tx_frames",
    /// Frames that a program changed.
    Changed = "changed",
    /// Frames that a program made.
    Generated = "generated",
    /// Marked as having met congestion.
    Marked = "ecn_marked",
    /// Cut down to their headers.
    Trimmed = "trimmed",
    /// Compare and swaps that the switch granted: a WRITE of the new value went on.
    CasGranted = "cas_granted",
    /// Compare and swaps that the switch refused: a WRITE of nothing went on.
    CasRefused = "cas_refused",
    /// Fetch and adds that the switch did.
    FetchAdded = "fetch_added",
    /// WRITEs of tracked words.
    Stores = "stores",
    /// WRITEs to words that the server decides, whose acknowledgement is waited for.
    StoresPassed = "stores_passed",
    /// Words that became known by a WRITE: of these, some may have been refused by the server.
    LearnedByStore = "learned_by_store",
    /// Words that became known by an atomic's answer.
    LearnedByAtomic = "learned_by_atomic",
    /// Atomics that the server decides.
    AtomicsPassed = "atomics_passed",
    /// Requests that waited.
    Held = "held",
    /// Requests that were sent again, and were made again what they had been made before.
    Repeated = "repeated",
    /// Requests that came again and were taken before later ones of their queue pair, which wait.
    RepeatedFirst = "repeated_first",
    /// Waits to be alone with a word that ended in vain: for as long nobody waits for it.
    WaitsInVain = "waits_in_vain",
    /// Atomics that the server has executed, as the answer to a later request said.
    AnswersImplied = "answers_implied",
    /// Atomic acknowledgements made of acknowledgements.
    Answered = "answered",
    /// Of these, those of an acknowledgement that also spoke for later requests.
    DeCoalesced = "de_coalesced",
    /// NAKs that the switch sent for a gap before a tracked request.
    GapNaks = "gap_naks",
    /// Connections whose two numbers were matched.
    Paired = "paired",
    /// Answers that might have been of several connections.
    Ambiguous = "answers_ambiguous",
    /// Keys for which the switch stopped to convert: the server refused a WRITE.
    KeysRefused = "keys_refused",
    /// Words given back to the server: an access that the switch does not follow, or no answer.
    WordsUnsure = "words_unsure",
    /// Connections that were not followed, because the table is full.
    ConnectionsFull = "connections_full",
    /// Words that were not followed, because the table is full.
    WordsFull = "words_full",
    /// Requests that went to the server on another client's connection.
    Moved = "moved",
    /// Queue pairs that the server was asked to answer, before a request of theirs goes on another one.
    Proofs = "proofs",
    /// Queue pairs whose numbers were shifted.
    Shifted = "shifted",
    /// NAKs that a carrier's clients got for one of the server's.
    NaksBroadcast = "naks_broadcast",
    /// Requests that a carrier has sent again of its own accord.
    Resent = "resent",
    /// Requests that a carrier that failed has given to another one.
    MovedOn = "moved_on",
    /// Times that a request found a carrier's ring full.
    RingFull = "ring_full",
    /// Requests that took the place of one that was not answered in a carrier's ring.
    RingOverrun = "ring_overrun",
    /// Compare and swaps that were sent to a later entry than the one they named.
    SteeredCas = "steered_cas",
    /// READs that were sent to a later entry.
    SteeredReads = "steered_reads",
    /// Compare and swaps that named the last entry.
    CurrentCas = "current_cas",
    /// READs that named the last entry.
    CurrentReads = "current_reads",
    /// Compare and swaps of zeros that went where they said: of no entry that is followed, or of a chain
    /// whose end is not known.
    ChainsPassed = "chains_passed",
    /// Entries that the server was seen to link.
    TailsLearned = "tails_learned",
    /// Ends of chains that turned out to be none any more.
    TailsForgotten = "tails_forgotten",
    /// Keys that were not followed, because the table is full.
    KeysFull = "keys_full",
    /// Waits of links that ended before what was waited for.
    Overdue = "overdue",
    /// READs that waited for the link under way, so that they see it.
    HeldReads = "held_reads",
    /// Such waits that ended before what was waited for.
    OverdueReads = "overdue_reads",
    /// Links that waited for READs of the entry that they go behind, so that these see it as the last one.
    HeldLinks = "held_links",
    /// Such waits that ended before what was waited for.
    OverdueLinks = "overdue_links",
    /// READs of a chain's last entry that found a follower, by their answers.
    OvertakenReads = "overtaken_reads",
}

macro_rules! drops {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)*) => {
        /// Why a frame goes no further.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Drop { $($(#[doc = $doc])+ $name,)* }

        impl Drop {
            /// All of them, in order.
            pub const ALL: &[Drop] = &[$(Drop::$name,)*];

            /// The counter's name.
            pub fn name(self) -> &'static str {
                match self { $(Drop::$name => $text,)* }
            }
        }
    };
}

drops! {
    /// It is no RoCEv2 packet.
    Parse = "drop_parse",
    /// Its source is not an address of the port.
    Source = "drop_source",
    /// Nobody has its destination.
    NoRoute = "drop_no_route",
    /// Its port is gone.
    NoPort = "drop_no_port",
    /// Its ICRC is wrong, and a program would have used what it says.
    Icrc = "drop_icrc",
    /// A change of memory, while what another switch has converted may be on its way.
    Starting = "drop_starting",
    /// A tracked request behind a gap in its connection's PSNs.
    Gap = "drop_gap",
    /// It waited for its word for as long as it may.
    HoldTime = "drop_hold_time",
    /// No room to let it wait.
    HoldRoom = "drop_hold_room",
    /// A repeated PSN with other operands.
    Replay = "drop_replay",
    /// More atomics at once than the connection's results are kept for.
    Depth = "drop_depth",
    /// Sent again so late that its word has been given back to the server.
    Late = "drop_late",
    /// A repetition of what a carrier has under way, or of what waits.
    UnderWay = "drop_under_way",
    /// Of a queue pair whose numbers were shifted, by an instance or a connection that is not there any more.
    Shifted = "drop_shifted",
    /// An acknowledgement of requests that this switch has not seen.
    AckUnseen = "drop_ack_unseen",
    /// An acknowledgement that answers an atomic without its value.
    AckBare = "drop_ack_bare",
    /// A program of somebody else has dropped it; its note says why.
    Own = "drop_own",
}

/// The counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    counts: [u64; Counter::ALL.len()],
    drops: [u64; Drop::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Counters { counts: [0; Counter::ALL.len()], drops: [0; Drop::ALL.len()] }
    }
}

impl Counters {
    /// One more.
    pub fn add(&mut self, counter: Counter) {
        self.counts[counter as usize] += 1;
    }

    /// A frame was dropped.
    pub fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }

    /// What another one has counted, too.
    pub fn add_all(&mut self, other: &Counters) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.drops.iter_mut().zip(other.drops).for_each(|(count, more)| *count += more);
    }

    /// How many.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize]
    }

    /// How many frames were dropped for this reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// How many frames were dropped.
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// All by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = Counter::ALL.iter().map(|counter| (counter.name(), self.get(*counter)));
        counts.chain(Drop::ALL.iter().map(|reason| (reason.name(), self.dropped(*reason))))
    }
}
