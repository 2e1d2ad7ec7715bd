//! What a 1RMA NIC counts, by name.

use crate::counters::counters;
use adverb_wire::one_rma::MessageError;

counters! { OneRmaCounters;
    /// Messages given to the NIC.
    rx_messages,
    /// Their bytes.
    rx_bytes,
    /// Messages that the NIC produced.
    tx_messages,
    /// Their bytes.
    tx_bytes,
    /// Operations that ended well.
    ops_ok,
    /// Operations that ended with REMOTE_AUTHENTICATION_FAILURE.
    ops_remote_authentication_failure,
    /// Operations that ended with NACK.
    ops_nack,
    /// Operations that ended with TIMEOUT.
    ops_timeout,
    /// Operations that ended with DISPATCH_TIMEOUT.
    ops_dispatch_timeout,
    /// Operations given up because their process was detached or their slot released; nobody was told.
    ops_abandoned,
    /// Completions whose region was gone when they came.
    completions_lost,
    /// Requests of peers whose tag was right.
    requests,
    /// Of these, how many came with a key that was not set up.
    keys_derived,
    /// Requests refused: no such region, a guessed RegionId among others.
    requests_unknown_region,
    /// Requests refused: wrong tag. Another host's, process's or operation's key, an old key, a changed or
    /// invented message.
    requests_unauthentic,
    /// Requests refused, tag right: the region does not allow the operation.
    requests_without_right,
    /// Requests refused, tag right: outside the region.
    requests_out_of_bounds,
    /// Requests answered with a NACK: too much waits to be served.
    nacks_queue,
    /// Requests answered with a NACK: the table of peers' operations is full.
    nacks_table,
    /// Requests answered with a NACK: waited too long for the solicitation window.
    nacks_window,
    /// Peers' reads that were served.
    reads_served,
    /// Peers' writes that landed.
    writes_landed,
    /// Region keys changed by operations, local or remote.
    rekeys,
    /// Peers' operations refused halfway, because their region's key had changed or the region was gone.
    revoked,
    /// Peers' four-hop operations whose data did not come in time.
    solicitations_expired,
    /// Peers' reads that waited until nobody could want them any more.
    reads_expired,
    /// Dropped: shorter than its headers.
    parse_truncated,
    /// Dropped: another version.
    parse_version,
    /// Dropped: no such kind.
    parse_kind,
    /// Dropped: a reserved byte was not zero.
    parse_reserved,
    /// Dropped: class of service or status.
    parse_detail,
    /// Dropped: length of the operation.
    parse_op_length,
    /// Dropped: place of a piece.
    parse_piece,
    /// Dropped: not as long as its header says.
    parse_length,
    /// Dropped: for a slot, or a ticket, that waits for no such message: late, replayed or invented.
    drop_unexpected,
    /// Dropped: from another address than the one asked.
    drop_source,
    /// Dropped: an answer or data whose tag was wrong.
    drop_unauthentic,
    /// Dropped: bytes that are there already.
    drop_duplicate,
    /// Dropped: a piece outside the operation, or one that does not end on a multiple of 64.
    drop_piece,
    /// Dropped: an authentication failure or NACK for an operation that the target had taken up.
    drop_late_refusal,
    /// Dropped: a solicitation that holds for longer than this NIC's own timeout.
    drop_solicitation,
    /// Dropped: the own region that should take or give the bytes is gone.
    drop_local_region,
    /// Not sent: too many answers waited to be sent.
    drop_answer,
    /// Not sent: the range of message counters is used up.
    drop_counter,
}

impl OneRmaCounters {
    pub(super) fn parse_error(&mut self, error: MessageError) {
        *match error {
            MessageError::Truncated => &mut self.parse_truncated,
            MessageError::Version => &mut self.parse_version,
            MessageError::Kind => &mut self.parse_kind,
            MessageError::Reserved => &mut self.parse_reserved,
            MessageError::Detail => &mut self.parse_detail,
            MessageError::OpLength => &mut self.parse_op_length,
            MessageError::Piece => &mut self.parse_piece,
            MessageError::Length => &mut self.parse_length,
        } += 1;
    }
}
