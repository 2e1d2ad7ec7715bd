//! Translations of the kernel's structs, which connection managers call: what the kernel says of an address,
//! a queue pair or a path, in the program's own structs, and a path back.

use crate::abi::*;

fn route(from: &ib_uverbs_global_route) -> ibv_global_route {
    // Padding too is zero, as the field by field copy of a cleared struct leaves it.
    let ib_uverbs_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved: _ } =
        *from;
    ibv_global_route { dgid: ibv_gid(dgid), flow_label, sgid_index, hop_limit, traffic_class }
}

fn address(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    let ib_uverbs_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num, reserved: _ } =
        *from;
    ibv_ah_attr { grh: route(&grh), dlid, sl, src_path_bits, static_rate, is_global, port_num }
}

/// An address vector from the kernel's.
///
/// # Safety
/// C ABI: a place for the one, and a valid other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    // SAFETY: by the caller's promise.
    unsafe { to.write(address(&*from)) };
}

/// Attributes of a queue pair from the kernel's. What the kernel's struct does not have (a rate limit) stays
/// as it is.
///
/// # Safety
/// C ABI: initialised attributes, and valid ones of the kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
    // SAFETY: by the caller's promise.
    let (to, from) = unsafe { (&mut *to, &*from) };
    let cap = ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    };
    *to = ibv_qp_attr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap,
        ah_attr: address(&from.ah_attr),
        alt_ah_attr: address(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: to.rate_limit,
    };
}

/// A path record from the kernel's.
///
/// # Safety
/// C ABI: a place for the one, and a valid other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: by the caller's promise.
    let from = unsafe { &*from };
    let path = ibv_sa_path_rec {
        dgid: ibv_gid(from.dgid),
        sgid: ibv_gid(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as i32,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as i32,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: by the caller's promise.
    unsafe { to.write(path) };
}

/// A path record for the kernel.
///
/// # Safety
/// C ABI: a place for the one, and a valid other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
    // SAFETY: by the caller's promise.
    let from = unsafe { &*from };
    let path = ib_user_path_rec {
        dgid: from.dgid.0,
        sgid: from.sgid.0,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: by the caller's promise.
    unsafe { to.write(path) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{MaybeUninit, size_of, zeroed};

    /// A struct whose bytes all differ from their neighbours.
    fn patterned<T>() -> T {
        let mut value = MaybeUninit::<T>::uninit();
        for at in 0..size_of::<T>() {
            // SAFETY: inside the value; the structs here are integers throughout.
            unsafe { value.as_mut_ptr().cast::<u8>().add(at).write(at as u8 + 1) };
        }
        // SAFETY: every byte is set.
        unsafe { value.assume_init() }
    }

    #[test]
    fn addresses_and_queue_pairs_come_whole() {
        let from: ib_uverbs_qp_attr = patterned();
        // SAFETY: integers.
        let mut to: ibv_qp_attr = unsafe { zeroed() };
        to.rate_limit = 77;
        // SAFETY: both live.
        unsafe { ibv_copy_qp_attr_from_kern(&mut to, &from) };
        let numbers = [
            (to.qp_state, from.qp_state),
            (to.cur_qp_state, from.cur_qp_state),
            (to.path_mtu, from.path_mtu),
            (to.path_mig_state, from.path_mig_state),
            (to.qkey, from.qkey),
            (to.rq_psn, from.rq_psn),
            (to.sq_psn, from.sq_psn),
            (to.dest_qp_num, from.dest_qp_num),
            (to.qp_access_flags, from.qp_access_flags),
            (to.cap.max_send_wr, from.max_send_wr),
            (to.cap.max_recv_wr, from.max_recv_wr),
            (to.cap.max_send_sge, from.max_send_sge),
            (to.cap.max_recv_sge, from.max_recv_sge),
            (to.cap.max_inline_data, from.max_inline_data),
            (to.pkey_index.into(), from.pkey_index.into()),
            (to.alt_pkey_index.into(), from.alt_pkey_index.into()),
            (to.en_sqd_async_notify.into(), from.en_sqd_async_notify.into()),
            (to.sq_draining.into(), from.sq_draining.into()),
            (to.max_rd_atomic.into(), from.max_rd_atomic.into()),
            (to.max_dest_rd_atomic.into(), from.max_dest_rd_atomic.into()),
            (to.min_rnr_timer.into(), from.min_rnr_timer.into()),
            (to.port_num.into(), from.port_num.into()),
            (to.timeout.into(), from.timeout.into()),
            (to.retry_cnt.into(), from.retry_cnt.into()),
            (to.rnr_retry.into(), from.rnr_retry.into()),
            (to.alt_port_num.into(), from.alt_port_num.into()),
            (to.alt_timeout.into(), from.alt_timeout.into()),
            (to.rate_limit, 77),
        ];
        for (at, (ours, theirs)) in numbers.into_iter().enumerate() {
            assert!(ours != 0 && ours == theirs, "number {at}: {ours:#x}, {theirs:#x}");
        }
        for (mut to, from) in [(to.ah_attr, from.ah_attr), (to.alt_ah_attr, from.alt_ah_attr)] {
            for _ in 0..2 {
                assert_eq!((to.grh.dgid.0, to.grh.flow_label), (from.grh.dgid, from.grh.flow_label));
                assert_eq!((to.grh.sgid_index, to.grh.hop_limit), (from.grh.sgid_index, from.grh.hop_limit));
                assert_eq!((to.grh.traffic_class, to.dlid), (from.grh.traffic_class, from.dlid));
                assert_eq!((to.sl, to.src_path_bits), (from.sl, from.src_path_bits));
                assert_eq!((to.static_rate, to.is_global), (from.static_rate, from.is_global));
                assert_eq!(to.port_num, from.port_num);
                // SAFETY: integers; both live.
                unsafe {
                    to = zeroed();
                    ibv_copy_ah_attr_from_kern(&mut to, &from);
                }
            }
        }
    }

    #[test]
    fn a_path_goes_there_and_back() {
        let mut from: ib_user_path_rec = patterned();
        // The program's form has a byte for it.
        from.mtu = 5;
        // SAFETY: integers.
        let (mut path, mut back): (ibv_sa_path_rec, ib_user_path_rec) = unsafe { (zeroed(), zeroed()) };
        // SAFETY: all live.
        unsafe {
            ibv_copy_path_rec_from_kern(&mut path, &from);
            ibv_copy_path_rec_to_kern(&mut back, &path);
        }
        assert_eq!((path.dgid.0, path.sgid.0, path.mtu), (from.dgid, from.sgid, 5));
        assert_eq!((path.dlid, path.slid, path.pkey), (from.dlid, from.slid, from.pkey));
        assert_eq!((path.reversible as u32, path.hop_limit), (from.reversible, from.hop_limit));
        let bytes = |record: &ib_user_path_rec| {
            // SAFETY: the struct has no padding: its fields fill it.
            unsafe {
                core::slice::from_raw_parts((&raw const *record).cast::<u8>(), size_of::<ib_user_path_rec>())
            }
            .to_vec()
        };
        assert_eq!(bytes(&back), bytes(&from));
    }
}
