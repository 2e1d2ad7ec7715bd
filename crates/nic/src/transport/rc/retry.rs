//! When a requester gives up: retry counts, and what an error says that used them up (IBTA 9.7.5.2, 9.7.6).
//! Every mode of recovery spends the same counts.

use crate::explain::{Cause, PacketCause, TimerCause, received};
use crate::qp::Qp;
use crate::silence::{Excused, Silence};
use crate::state::NicState;
use crate::transport::failure::fail_oldest;
use crate::work::Status;
use adverb_wire::{Duration, Instant, NakCode, Packet, Psn};

/// RNR retry count that stands for "without limit" (IBTA 9.7.5.2.8).
pub(super) const RNR_UNLIMITED: u8 = 7;

/// What a NAK means for the request that it refuses.
pub(super) fn nak_cause(code: NakCode, packet: &Packet) -> Cause {
    let (status, rule) = match code {
        NakCode::RemoteAccessError => (
            Status::RemoteAccess,
            "the responder refused the access: key, bounds or rights (NAK remote access error, IBTA \
                9.7.5.2.4)",
        ),
        NakCode::RemoteOperationalError => (
            Status::RemoteOperation,
            "the responder failed for reasons of its own (NAK remote operational error, IBTA 9.7.5.2.5)",
        ),
        _ => (
            Status::RemoteInvalidRequest,
            "the responder found the request invalid: operation, length, or a receive too small (NAK invalid \
                request, IBTA 9.7.5.2.3)",
        ),
    };
    Cause { packet: Some(received(packet)), ..Cause::local(status, rule) }
}

/// Whether more time without an acknowledgement costs no retry, since the peer lives and had no processor.
pub(super) fn is_excused(qp: &mut Qp, nic: &mut NicState, silence: Silence, time: Duration) -> bool {
    let excused = silence.is_excused() && qp.requester.excused.add(time, nic.tolerance.excused_max);
    nic.counters.timeouts_excused += u64::from(excused);
    excused
}

/// Whether a timeout that counts costs a retry.
pub(super) fn costs_retry(qp: &Qp, nic: &NicState) -> bool {
    let (r, count) = (&qp.requester, qp.attr.retry_cnt);
    nic.tolerance.costs_retry(qp.rto(nic), r.expiries, count.saturating_sub(r.retries), count)
}

/// Why a queue pair fails whose peer is silent, in words.
fn rule_of_silence(silence: Silence) -> &'static str {
    match silence {
        Silence::Unknown => {
            "the peer did not acknowledge within the timeout, retry count times over (IBTA 9.7.6.1.3)"
        }
        Silence::Heard => {
            "the peer runs and took in what arrived, but did not acknowledge within the timeout, retry count \
                times over (IBTA 9.7.6.1.3)"
        }
        Silence::Stopped => {
            "the peer's process is stopped, and did not acknowledge within the timeout, retry count times \
                over (IBTA 9.7.6.1.3)"
        }
        Silence::Gone => {
            "the peer's process has ended, and did not acknowledge within the timeout, retry count times \
                over (IBTA 9.7.6.1.3)"
        }
        Silence::Unread => {
            "the peer's process lives, but had no processor for longer than is waited for, and then for the \
                timeout, retry count times over (IBTA 9.7.6.1.3)"
        }
        Silence::Late => {
            "the peer's process lives, but it, this one, or a switch between them had no processor for \
                longer than is waited for, and then for the timeout, retry count times over (IBTA 9.7.6.1.3)"
        }
    }
}

/// Why a queue pair fails whose peer is silent. `una` is the oldest PSN that it did not acknowledge.
pub(super) fn unanswered(qp: &Qp, nic: &NicState, una: Psn, silence: Silence) -> Cause {
    let timer =
        TimerCause { name: "local ACK timeout", length: qp.rto(nic), expiries: qp.requester.expiries };
    let packet = PacketCause { received: false, opcode: None, psn: una, syndrome: None };
    let cause = Cause::local(Status::TransportRetryExceeded, rule_of_silence(silence));
    Cause { packet: Some(packet), timer: Some(timer), ..cause }
}

/// Spends a retry. False when none is left: then the oldest request has failed of `cause`, and the queue pair
/// with it.
pub(super) fn spend_retry(qp: &mut Qp, nic: &mut NicState, now: Instant, cause: &Cause) -> bool {
    if qp.requester.retries == 0 {
        fail_oldest(qp, nic, now, cause);
        return false;
    }
    if !nic.retry_forever {
        qp.requester.retries -= 1;
    }
    true
}

/// Spends a retry for a receiver that is not ready, in the same way. `packet` is the one that said so, if one
/// did.
pub(super) fn spend_rnr_retry(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    packet: Option<&Packet>,
    code: u8,
) -> bool {
    if qp.requester.rnr_retries == 0 {
        let timer = TimerCause { name: "RNR timer", length: rnr_time(code), expiries: qp.attr.rnr_retry };
        let rule = "the responder had no receive posted more often than the RNR retry count allows (IBTA \
                    9.7.5.2.8)";
        let cause = Cause::local(Status::RnrRetryExceeded, rule);
        let cause = Cause { packet: packet.map(received), timer: Some(timer), ..cause };
        fail_oldest(qp, nic, now, &cause);
        return false;
    }
    if qp.requester.rnr_retries < RNR_UNLIMITED {
        qp.requester.rnr_retries -= 1;
    }
    true
}

/// Sends nothing until the RNR timer is over. What is sent then, the mode has set.
pub(super) fn wait_for_receiver(qp: &mut Qp, now: Instant, code: u8) {
    // It answers, so it is there: only silence and gaps use up the transport's retries.
    qp.requester.retries = qp.attr.retry_cnt;
    qp.requester.expiries = 0;
    qp.requester.excused = Excused::default();
    qp.requester.rnr_wait = true;
    qp.deadline = now + rnr_time(code);
}

/// Time that an RNR NAK's 5-bit code stands for (IBTA table 49).
pub(super) fn rnr_time(code: u8) -> Duration {
    /// In units of 10 us.
    const TABLE: [u16; 32] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let tens = match code & 0x1f {
        0 => 65536,
        n => TABLE[n as usize] as u64,
    };
    Duration::from_us(10 * tens)
}
