//! What a queue pair's requests are on the wire: the byte that every packet looks at, beside the
//! [`Mode`](super::Mode) that sets it.

/// Plain RC, whatever the mode, until both ends have agreed on something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Dialect {
    /// IBTA's.
    #[default]
    Plain,
    /// IRN's.
    Irn,
    /// IBTA's, and the queue pair offers nothing else, whatever its NIC does.
    PlainOnly,
}

impl Dialect {
    /// A READ takes one PSN, because its answers are a sequence of their own. In plain RC it takes one for
    /// each packet of its answer.
    #[inline]
    pub fn numbers_answers_apart(self) -> bool {
        self == Dialect::Irn
    }

    /// Timeouts come from the mode, and the local ACK timeout only bounds them.
    #[inline]
    pub fn has_own_timeouts(self) -> bool {
        self == Dialect::Irn
    }
}
