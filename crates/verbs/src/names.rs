//! The calls that only translate a number: names of enum values, and link rates.
//!
//! The words are what other verbs libraries print too, because people and scripts search for them.

use core::ffi::{CStr, c_char, c_int};

const UNKNOWN: &CStr = c"unknown";

const WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const EVENT: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const NODE_TYPE: [&CStr; 8] = [
    UNKNOWN,
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATE: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

fn name(table: &[&'static CStr], value: c_int) -> *const c_char {
    usize::try_from(value).ok().and_then(|index| table.get(index)).unwrap_or(&UNKNOWN).as_ptr()
}

const WORK_REQUEST: [&CStr; 12] = [
    c"RDMA_WRITE",
    c"RDMA_WRITE_WITH_IMM",
    c"SEND",
    c"SEND_WITH_IMM",
    c"RDMA_READ",
    c"ATOMIC_CMP_AND_SWP",
    c"ATOMIC_FETCH_AND_ADD",
    c"LOCAL_INV",
    c"BIND_MW",
    c"SEND_WITH_INV",
    c"TSO",
    c"DRIVER1",
];

/// Words for an `enum ibv_wr_opcode`.
pub(crate) fn work_request(opcode: c_int) -> *const c_char {
    name(&WORK_REQUEST, opcode)
}

/// Words for an `enum ibv_wc_status`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    name(&WC_STATUS, status)
}

/// Words for an `enum ibv_event_type`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    name(&EVENT, event)
}

/// Words for an `enum ibv_node_type`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    name(&NODE_TYPE, node_type)
}

/// Words for an `enum ibv_port_state`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    name(&PORT_STATE, state)
}

/// A static rate: its code (IBTA 9.11.1), its multiple of 2.5 Gb/s where it is one of the rates that
/// the older pair of calls knows, and its Mb/s of raw signalling.
struct Rate {
    code: c_int,
    mult: Option<c_int>,
    mbps: c_int,
}

const fn rate(code: c_int, mult: c_int, mbps: c_int) -> Rate {
    Rate { code, mult: if mult == 0 { None } else { Some(mult) }, mbps }
}

const RATES: [Rate; 23] = [
    rate(2, 1, 2_500),
    rate(3, 4, 10_000),
    rate(4, 12, 30_000),
    rate(5, 2, 5_000),
    rate(6, 8, 20_000),
    rate(7, 16, 40_000),
    rate(8, 24, 60_000),
    rate(9, 32, 80_000),
    rate(10, 48, 120_000),
    rate(11, 0, 14_062),
    rate(12, 0, 56_250),
    rate(13, 0, 112_500),
    rate(14, 0, 168_750),
    rate(15, 0, 25_781),
    rate(16, 0, 103_125),
    rate(17, 0, 206_250),
    rate(18, 0, 309_375),
    rate(19, 11, 28_125),
    rate(20, 20, 53_125),
    rate(21, 160, 425_000),
    rate(22, 240, 637_500),
    rate(23, 320, 850_000),
    rate(24, 480, 1_275_000),
];

/// A rate's multiple of 2.5 Gb/s, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(code: c_int) -> c_int {
    RATES.iter().find(|r| r.code == code).and_then(|r| r.mult).unwrap_or(-1)
}

/// The rate that is a multiple of 2.5 Gb/s, or 0 (`IBV_RATE_MAX`).
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.mult == Some(mult)).map_or(0, |r| r.code)
}

/// A rate in Mb/s, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(code: c_int) -> c_int {
    RATES.iter().find(|r| r.code == code).map_or(-1, |r| r.mbps)
}

/// The rate of so many Mb/s, or 0 (`IBV_RATE_MAX`).
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.mbps == mbps).map_or(0, |r| r.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_values_in_and_out_of_range() {
        let text = |p: *const c_char| {
            // SAFETY: every name is a static C string.
            unsafe { CStr::from_ptr(p) }.to_str().expect("ASCII")
        };
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(24)), "unknown");
        assert_eq!(text(ibv_wc_status_str(-1)), "unknown");
        assert_eq!(text(ibv_event_type_str(16)), "last WQE reached");
        assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(text(ibv_port_state_str(4)), "active");
    }

    #[test]
    fn rates_go_both_ways() {
        for r in &RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(r.code)), r.code);
            if r.mult.is_some() {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(r.code)), r.code);
            }
        }
        assert_eq!(ibv_rate_to_mbps(1), -1);
        assert_eq!(mult_to_ibv_rate(7), 0);
    }
}
