//! What the NIC tells its driver without being asked: completion events and asynchronous events.

use crate::ids::{CqId, QpId, SrqId};

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
    /// A shared receive queue fell below its limit.
    SrqLimitReached(SrqId),
}
