//! What the NIC tells its driver without being asked: completion events and asynchronous events.

use crate::ids::{CqId, QpId, SrqId};
use crate::star::StarSide;

/// An event (IBTA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A completion was added to an armed completion queue; the queue is disarmed now.
    Completion(CqId),
    /// A completion queue overran; its completions are lost.
    CqError(CqId),
    /// A queue pair went to the error state because of a local or remote fault.
    QpFatal(QpId),
    /// A request broke the transport's rules.
    QpRequestError(QpId),
    /// A request failed its access check.
    QpAccessError(QpId),
    /// First packet on a queue pair that is still in RTR.
    CommunicationEstablished(QpId),
    /// The send queue has drained after a transition to SQD.
    SqDrained(QpId),
    /// A queue pair in error has taken its last receive from its shared receive queue.
    LastWqeReached(QpId),
    /// The peer of a queue pair knows IRN as this NIC does: loss is recovered selectively from now on.
    IrnAgreed(QpId),
    /// The peer of a queue pair did not say whether it knows IRN, however often it was asked: loss is
    /// recovered by go-back-N. It may still agree later.
    IrnUnanswered(QpId),
    /// What a queue pair of a NIC that offers StaR has become.
    Star(QpId, StarOutcome),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(SrqId),
    /// The connection manager has events: [`Nic::next_cm_event`](crate::Nic::next_cm_event). Comes once until
    /// all were taken.
    ConnectionManager,
}

/// What a queue pair of a NIC that offers StaR has become, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StarOutcome {
    /// This NIC keeps nothing of the connection.
    Stateless,
    /// This NIC keeps both sides' state.
    Stateful,
    /// Plain RC: both sides insist on the same role.
    Conflict,
    /// Plain RC: neither side has too many connections.
    Few,
    /// Plain RC: the peer has not answered, and something is to be sent.
    Unanswered,
    /// Plain RC: this side would have to keep longer queues for the peer than it does.
    TooLarge,
    /// Plain RC: the peer does not keep queues of this length.
    Refused,
    /// Plain RC: the peer has sent a request of plain RC.
    PlainRequest,
    /// Plain RC: the program writes its WQEs itself.
    Written,
    /// Plain RC: the peer's registry has not taken the rules for this connection.
    Unregistered,
    /// Not a queue pair that StaR carries.
    Excluded,
    /// It has changed while the connection lasts: what it is now, and why.
    Switched(StarSide, Why),
    /// It has failed, with no request that could say so: the stateless side does not acknowledge that a
    /// message is complete.
    Unheard,
    /// It was to change, and stays what it is: the two sides did not agree, or did not come to rest.
    NotSwitched,
}

/// Why a connection changes its stack or its roles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It was asked for at this side.
    Command,
    /// The peer's side wants it.
    Peer,
    /// By the number of connections of both sides.
    Load,
}

impl StarOutcome {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            StarOutcome::Stateless => "StaR, stateless: the peer keeps both sides' state",
            StarOutcome::Stateful => "StaR, stateful: keeps both sides' state",
            StarOutcome::Conflict => "plain RC: both sides want the same role of StaR",
            StarOutcome::Few => "plain RC: neither side has more connections than its StaR threshold",
            StarOutcome::Unanswered => "plain RC: the peer did not answer whether it knows StaR",
            StarOutcome::TooLarge => "plain RC: the peer's queues are longer than this side keeps for StaR",
            StarOutcome::Refused => "plain RC: the peer does not keep queues of this length for StaR",
            StarOutcome::PlainRequest => "plain RC: the peer sent a request of plain RC",
            StarOutcome::Written => {
                "plain RC: the program writes its work queue elements itself, against StaR"
            }
            StarOutcome::Unregistered => "plain RC: the peer's registry of StaR has not taken its rules",
            StarOutcome::Switched(side, why) => switched(side, why),
            StarOutcome::Unheard => {
                "in ERR: the stateless side did not acknowledge the completion of a message within the \
                    timeout, retry count times over"
            }
            StarOutcome::NotSwitched => "unchanged: the change of its StaR role came to nothing",
            StarOutcome::Excluded => {
                "unchanged: StaR carries RC with receive queues of its own, no shared ones, XRC, UC or UD"
            }
        }
    }
}

/// A switch in words.
const fn switched(side: StarSide, why: Why) -> &'static str {
    match (side, why) {
        (StarSide::Stateless, Why::Command) => "StaR, stateless from now on: asked for here",
        (StarSide::Stateless, Why::Peer) => "StaR, stateless from now on: the peer wants it",
        (StarSide::Stateless, Why::Load) => "StaR, stateless from now on: this side has more connections",
        (StarSide::Stateful, Why::Command) => "StaR, stateful from now on: asked for here",
        (StarSide::Stateful, Why::Peer) => "StaR, stateful from now on: the peer wants it",
        (StarSide::Stateful, Why::Load) => "StaR, stateful from now on: the peer has more connections",
        (_, Why::Command) => "plain RC from now on: asked for here",
        (_, Why::Peer) => "plain RC from now on: the peer wants it",
        (_, Why::Load) => "plain RC from now on: by the number of connections",
    }
}
