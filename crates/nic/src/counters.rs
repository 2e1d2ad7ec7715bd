//! Everything that the NIC counts, by name.

/// A struct of counters that knows their names. Those that move with every packet stand first, in one cache
/// line.
macro_rules! counters {
    ($counters:ident; $($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of one NIC since it was made. None ever decreases.
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        #[repr(C, align(64))]
        pub struct $counters { $($(#[doc = $doc])* pub $name: u64,)* }

        impl $counters {
            /// Names and values, in the order of their declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// From values in the order of their declaration, as another process told them.
            pub fn from_values(mut next: impl FnMut() -> u64) -> Self {
                $counters { $($name: next(),)* }
            }
        }
    };
}
pub(crate) use counters;

counters! { Counters;
    /// Packets given to the NIC.
    rx_packets,
    /// Their payload bytes.
    rx_bytes,
    /// Packets that the NIC produced.
    tx_packets,
    /// Their payload bytes.
    tx_bytes,
    /// Completions written with success.
    completions,
    /// Positive acknowledgements sent.
    acks_sent,
    /// Positive acknowledgements received.
    acks_received,
    /// Completions written with an error, flushed ones included.
    error_completions,
    /// Completions lost to an overrun queue.
    cq_overruns,
    /// Acknowledgements that covered more than one request.
    acks_coalesced,
    /// PSN sequence error NAKs sent.
    sequence_naks_sent,
    /// PSN sequence error NAKs received.
    sequence_naks_received,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// RNR NAKs received.
    rnr_naks_received,
    /// NAKs of other kinds sent.
    error_naks_sent,
    /// NAKs of other kinds received.
    error_naks_received,
    /// Acknowledgements overdue that cost no retry, since the peer lives and had no processor.
    timeouts_excused,
    /// Local ACK timeouts.
    timeouts,
    /// Packets sent again.
    retransmitted_packets,
    /// READ responses that came before a lost one, or atomics acknowledged over: implied NAKs.
    implied_naks,
    /// Duplicate requests answered again.
    duplicate_requests,
    /// WRITEs of a word, or of nothing, that a switch may have made of atomics, and that only the right to
    /// atomics let in.
    writes_for_atomics,
    /// Hellos sent that ask whether the peer knows IRN, or answer.
    irn_hellos_sent,
    /// Queue pairs whose peers know IRN.
    irn_agreed,
    /// Queue pairs whose peers did not answer; they stay plain RC.
    irn_unanswered,
    /// Packets sent again once before a timeout, so that the peer tells what it has.
    irn_tail_probes,
    /// IRN packets that came ahead of their turn and were kept.
    early_packets,
    /// IRN packets that came ahead of their turn and could not be kept.
    early_refused,
    /// Congestion notification packets received.
    cnps_received,
    /// Those that slowed a queue pair down.
    cnp_handled,
    /// Congestion notification packets sent.
    cnp_sent,
    /// Data packets received that a switch had marked.
    ecn_marked,
    /// DCTCP: acknowledgements sent that echo a mark.
    ecn_echo_sent,
    /// DCTCP: those that a window heeded.
    ecn_echo_handled,
    /// HPCC: acknowledgements with telemetry that a window heeded.
    telemetry_handled,
    /// Packets to own queue pairs that never left the NIC. They count as produced and as given to it, too.
    loopback_packets,
    /// Queue pairs created.
    qps_created,
    /// Times that a queue pair became ready to receive, from its peer or from anybody; loops within the NIC
    /// are left out.
    qps_connected,
    /// Queue pairs destroyed.
    qps_destroyed,
    /// Own requests that moved payload and completed well, where that is counted (adverb run --summary).
    requests_done,
    /// Payload bytes of own requests that completed well, where that is counted.
    payload_requested,
    /// Payload bytes of peers' requests that were carried out here, where that is counted.
    payload_served,
    /// StaR: hellos sent.
    star_hellos_sent,
    /// StaR: connections that agreed on a stateless and a stateful side.
    star_agreed,
    /// StaR: connections that became plain RC, since the peer did not answer, or the wishes led there.
    star_fell_back,
    /// StaR: connections that became plain RC because both sides insisted on the same role.
    star_role_conflicts,
    /// StaR, stateless: RDs and GDs executed.
    star_executed,
    /// StaR, stateless: copies of RDs that had been executed, acknowledged again.
    star_duplicate,
    /// StaR, stateless: requests refused because their key, bounds or rights do not allow them.
    star_nak_region,
    /// StaR, stateless: requests refused because they name something posted that is not outstanding.
    star_nak_not_posted,
    /// StaR, stateless: requests refused because of their form.
    star_nak_invalid,
    /// StaR, stateless: requests that were past their deadline, or claimed one too far ahead.
    star_drop_expired,
    /// StaR, stateless: RDs put off because the history had no room.
    star_history_full,
    /// StaR, stateless: requests dropped because the row of answers was full.
    star_answers_full,
    /// StaR, native service: requests put off because every buffer had one that waits for the application.
    star_pool_full,
    /// StaR, native service: requests whose time was up before the application took them.
    star_requests_late,
    /// StaR, stateful: answers whose place in the order made the request be executed again.
    star_out_of_order,
    /// StaR, stateful: requests that were put off or past their deadline, and are sent again.
    star_deferred,
    /// StaR, stateful, with a registry: packets that a rule allowed to leave.
    star_egress_allowed,
    /// StaR, stateful, with a registry: packets that no rule allowed to leave, whose request has failed.
    star_egress_refused,
    /// Dropped: StaR's ticket is not this NIC's, or not the sender's, or for another queue pair.
    star_drop_ticket,
    /// Dropped: StaR's ticket is of a queue pair number that does not live, or of an earlier life.
    star_drop_not_live,
    /// StaR, stateless side: packets sent with work requests for the peer, or that ask for a sign of life.
    star_work_sent,
    /// StaR, stateless side: times that the peer was told again, or asked, because it had not answered.
    star_repeats,
    /// StaR, stateless side: completions that came once more.
    star_cqe_duplicate,
    /// StaR, stateless side: bytes of its host's queues that packets for something posted have read.
    star_host_bytes,
    /// StaR, stateless side: of those executed, the ones that named by address what is posted.
    star_carried,
    /// StaR, stateful side: GDs that asked for the data of several packets.
    star_bursts,
    /// StaR, stateless side: completions that came with their data.
    star_merged,
    /// StaR, stateless side: completions that came before one that is still to come, and were put off.
    star_merge_early,
    /// StaR, stateless side: work requests that their first data acknowledged.
    star_heard_by_data,
    /// StaR, stateless side: completions for what is not outstanding.
    star_cqe_unknown,
    /// StaR, stateless side: completions of receives with more bytes than they have room for.
    star_cqe_length,
    /// StaR, stateless side: atomics put off because one before them has not come.
    star_atomic_early,
    /// StaR, stateful side: work requests of the peer that came once more.
    star_wqe_duplicate,
    /// StaR, stateful side: work requests of the peer that came before their turn, made no sense or did not
    /// fit the queues that it has told.
    star_wqe_gap,
    /// StaR: connections that became stateless here while they lasted.
    star_to_stateless,
    /// StaR: connections that became stateful here while they lasted.
    star_to_stateful,
    /// StaR: connections that became plain RC while they lasted.
    star_to_rc,
    /// StaR: messages of switches sent.
    star_switches_said,
    /// StaR: attempts of the peer at a switch that were refused.
    star_switch_refused,
    /// StaR: attempts at a switch that came to nothing: both sides went on as before.
    star_switch_aborted,
    /// StaR: switches that were wanted and given up.
    star_switch_given_up,
    /// Dropped: a message of a switch that is not the peer's, or of no connection that could switch.
    star_drop_switch,
    /// Dropped: a packet of a stack that its connection had before a switch.
    star_drop_earlier,
    /// Dropped: no queue pair of that number.
    drop_unknown_qp,
    /// Dropped: queue pair in a state that does not receive.
    drop_qp_state,
    /// Dropped: opcode's service is not the queue pair's.
    drop_wrong_service,
    /// Dropped: partition key.
    drop_pkey,
    /// Dropped: source address is not the connected peer's.
    drop_source,
    /// Dropped: queue key.
    drop_qkey,
    /// Dropped: out of order and already NAKed, or a gap on an unreliable queue.
    drop_out_of_order,
    /// Dropped: hello of IRN's that does not fit the connection, or comes after plain RC was settled on.
    drop_hello,
    /// Dropped: duplicate that needs no answer, or whose answer is no longer kept.
    drop_duplicate,
    /// Dropped: acknowledgement of a PSN that is not outstanding.
    drop_ghost_ack,
    /// Dropped: response that fits no outstanding request.
    drop_stray_response,
    /// Dropped: reserved AETH syndrome.
    drop_syndrome,
    /// Dropped: payload longer than the path MTU, or not as long as its place in the message demands.
    drop_length,
    /// Dropped: no receive posted on an unreliable queue pair.
    drop_no_receive,
    /// Dropped: datagram larger than the receive posted for it, or failing local protection.
    drop_receive_error,
    /// Dropped: multicast to a group that nobody joined.
    drop_no_member,
    /// Dropped: requests beyond the agreed READ/atomic depth that repeat older ones.
    drop_read_depth,
    /// Datagrams not sent because their path was blocked, and the driver had given up on it.
    drop_tx_blocked,
    /// Times that a datagram queue pair began to wait for a blocked path.
    datagram_waits,
    /// Asynchronous events lost because nobody took them.
    events_lost,
}
