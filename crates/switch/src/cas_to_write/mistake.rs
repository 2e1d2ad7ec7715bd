//! What the program does wrong on purpose, so that oracles are seen to find it.

/// A mistake that the program makes on purpose, for an oracle to find. No file can ask for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Requests and answers are believed whatever their ICRC says.
    Unchecked,
    /// A new instance begins at once, and lets acknowledgements pass of what the one before it converted.
    Forgetful,
    /// A converted atomic that is sent again is decided again.
    Twice,
    /// An acknowledgement answers the last of the atomics that it speaks for.
    Coalesced,
    /// Requests on carriers and on their client's own queue pair do not wait for each other. Not among
    /// [`ALL`](Self::ALL), as a swarm's oracle does not know of the order of queue pairs.
    Overtakes,
    /// It is forgotten which queue pairs' numbers were shifted.
    ForgetsShift,
    /// A word is learned from an answer while other atomics of it are on their way.
    Hasty,
    /// A request that is sent again waits behind later ones of its queue pair, which may wait for its answer.
    /// Nothing that is wrong, so not among [`ALL`](Self::ALL): words stay the server's.
    Stuck,
    /// A word is learned while a WRITE is on its way to it that the server has as it is.
    Unwatched,
}

impl Mistake {
    /// Those for swarms, with their names and what they are.
    pub const ALL: [(Mistake, &'static str, &'static str); 7] = [
        (Mistake::Unchecked, "icrc-unchecked", "requests and answers are believed whatever their ICRC says"),
        (
            Mistake::Forgetful,
            "restart-forgets",
            "a switch that starts lets pass what answers its predecessor's WRITEs",
        ),
        (Mistake::Twice, "converted-twice", "a converted atomic that is sent again is decided again"),
        (
            Mistake::Coalesced,
            "answers-coalesced",
            "of the atomics that one acknowledgement covers, the last is answered",
        ),
        (Mistake::ForgetsShift, "shift-forgotten", "a switch that starts forgets whose numbers were shifted"),
        (
            Mistake::Hasty,
            "learned-beside-atomics",
            "a word is learned while other atomics are on their way to it",
        ),
        (Mistake::Unwatched, "learned-beside-writes", "a word is learned while a WRITE is on its way to it"),
    ];
}
