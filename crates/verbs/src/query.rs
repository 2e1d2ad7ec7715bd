//! What the device, its port and its tables are: attributes, GIDs, partition keys, clocks
//! (IBTA 11.2.2).

use crate::abi::*;
use crate::context::device_of;
use crate::device::{Device, c_text};
use crate::handle::{code, fail, set_errno};
use adverb_nic::limits;
use core::ffi::c_int;
use core::mem::size_of;

/// The only port.
pub(crate) const PORT: u8 = 1;
/// The default partition, full membership; the only entry of the table (IBTA 10.9.1.1).
const PKEY: u16 = 0xffff;
/// No organisation's identifier: a software device, as other software NICs say too. A hardware
/// vendor's identifier would make programs use that vendor's private interfaces.
const VENDOR_ID: u32 = 0x00ff_ffff;
/// "ad".
const VENDOR_PART_ID: u32 = 0xad;
/// Four lanes of 25 Gb/s, as `port_attr` says, in units of 100 Mb/s.
const SPEED: u64 = 1000;
/// Entries of the GID table; those without an address are empty, as on other adapters.
const GID_TABLE_LEN: usize = 16;
/// Bytes of device memory per process.
pub(crate) const DM_SIZE: u64 = limits::MAX_DM_SIZE;

fn as_int(value: u64) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// Attributes of a device, all taken from the NIC's limits.
fn device_attr(device: &Device) -> ibv_device_attr {
    // SAFETY: integers and arrays of integers.
    let mut attr: ibv_device_attr = unsafe { core::mem::zeroed() };
    let guid = device.guid.to_be();
    attr.fw_ver = c_text(env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid;
    attr.sys_image_guid = guid;
    attr.max_mr_size = limits::MAX_MR_SIZE;
    // Any page size from 4 KiB up will do.
    attr.page_size_cap = !0xfff;
    attr.vendor_id = VENDOR_ID;
    attr.vendor_part_id = VENDOR_PART_ID;
    attr.hw_ver = 0;
    attr.max_qp = as_int(limits::MAX_QP.into());
    attr.max_qp_wr = as_int(limits::MAX_QP_WR.into());
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attr.max_sge = as_int(limits::MAX_SGE.into());
    attr.max_sge_rd = as_int(limits::MAX_SGE.into());
    attr.max_cq = as_int(limits::MAX_CQ.into());
    attr.max_cqe = as_int(limits::MAX_CQE.into());
    attr.max_mr = as_int(limits::MAX_MR.into());
    attr.max_pd = as_int(limits::MAX_PD.into());
    attr.max_qp_rd_atom = c_int::from(limits::MAX_RD_ATOMIC);
    attr.max_res_rd_atom = as_int(u64::from(limits::MAX_QP) * u64::from(limits::MAX_RD_ATOMIC));
    attr.max_qp_init_rd_atom = c_int::from(limits::MAX_INIT_RD_ATOMIC);
    // The NIC's atomics are the CPU's own instructions on the same memory.
    attr.atomic_cap = IBV_ATOMIC_GLOB;
    attr.max_mw = as_int(limits::MAX_MW.into());
    attr.max_mcast_grp = as_int(limits::MAX_MCAST_GROUPS as u64);
    attr.max_mcast_qp_attach = as_int(limits::MAX_QP_PER_GROUP as u64);
    attr.max_total_mcast_qp_attach = as_int((limits::MAX_MCAST_GROUPS * limits::MAX_QP_PER_GROUP) as u64);
    attr.max_ah = c_int::MAX;
    attr.max_srq = as_int(limits::MAX_SRQ.into());
    attr.max_srq_wr = as_int(limits::MAX_SRQ_WR.into());
    attr.max_srq_sge = as_int(limits::MAX_SRQ_SGE.into());
    attr.max_pkeys = 1;
    // 4.096 us * 2^15 = 134 ms: a process that is not scheduled answers late.
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = PORT;
    attr
}

/// The extended attributes. All memory is paged on demand by the operating system, so on-demand
/// regions are offered for every service; the implicit region (the whole address space) is not,
/// because an access to an unmapped address would end the process.
fn device_attr_ex(device: &Device) -> ibv_device_attr_ex {
    const SEND_RECEIVE: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    const CONNECTED: u32 = SEND_RECEIVE | IBV_ODP_SUPPORT_WRITE;
    const RELIABLE: u32 = CONNECTED | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    const ODP_SUPPORT: u64 = 1;
    // SAFETY: integers and arrays of integers.
    let mut attr: ibv_device_attr_ex = unsafe { core::mem::zeroed() };
    attr.orig_attr = device_attr(device);
    attr.odp_caps =
        ibv_odp_caps { general_caps: ODP_SUPPORT, per_transport_caps: [RELIABLE, CONNECTED, SEND_RECEIVE] };
    attr.xrc_odp_caps = RELIABLE;
    // Completion timestamps are nanoseconds: a 1 GHz clock, in kHz.
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = 1_000_000;
    attr.device_cap_flags_ex = u64::from(attr.orig_attr.device_cap_flags);
    attr.packet_pacing_caps = crate::rate::CAPS;
    attr.max_dm_size = DM_SIZE;
    attr.phys_port_cnt_ex = u32::from(PORT);
    attr
}

/// The port's attributes. Speed and width stand for 100 Gb/s, a number that programs need and a
/// software NIC does not have.
fn port_attr(device: &Device) -> ibv_port_attr {
    // SAFETY: integers only.
    let mut attr: ibv_port_attr = unsafe { core::mem::zeroed() };
    attr.state = IBV_PORT_ACTIVE;
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = device.mtu as u32;
    attr.gid_tbl_len = as_int(GID_TABLE_LEN.max(device.gids.len()) as u64);
    attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = limits::MAX_MESSAGE as u32;
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    attr.active_width = IBV_WIDTH_4X as u8;
    attr.active_speed = IBV_SPEED_25_GBPS as u8;
    attr.phys_state = IBV_PHYS_LINK_UP as u8;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    attr.flags = IBV_QPF_GRH_REQUIRED as u8;
    attr
}

/// Copies as much of a struct as the caller's version of it has room for, and zeroes the rest.
///
/// # Safety
/// `to` has room for `room` bytes.
unsafe fn copy_sized<T: Copy>(from: &T, to: *mut T, room: usize) {
    let known = room.min(size_of::<T>());
    // SAFETY: both sides have `known` bytes, and `to` has `room`.
    unsafe {
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), known);
        to.cast::<u8>().add(known).write_bytes(0, room - known);
    }
}

/// Attributes of the device.
///
/// # Safety
/// C ABI: see `ibv_query_device(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller passes an open context and a place for the attributes.
    unsafe { *attr = device_attr(device_of(context)) };
    0
}

/// `ibv_query_device_ex(3)`.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the caller passes NULL or a valid input.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return fail(libc::EINVAL);
    }
    if attr_size < size_of::<ibv_device_attr>() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes an open context, and room of the stated size.
    unsafe { copy_sized(&device_attr_ex(device_of(context)), attr, attr_size) };
    0
}

/// `ibv_query_port(3)`, as programs call it: through the context, with the size they know.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_size: usize,
) -> c_int {
    if port != PORT {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes an open context, and room of the stated size.
    unsafe { copy_sized(&port_attr(device_of(context)), attr, attr_size) };
    0
}

/// The exported form, which only knows the struct of rdma-core before v23.
///
/// # Safety
/// C ABI: see `ibv_query_port(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller passes an open context and room for the short struct.
    unsafe { query_port(context, port, attr, COMPAT_PORT_ATTR_LEN) }
}

/// The port's speed in units of 100 Mb/s: that of its width and speed.
///
/// # Safety
/// C ABI: see `ibv_query_port_speed(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    _context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    if port != u32::from(PORT) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a place for the speed.
    unsafe { *speed = SPEED };
    0
}

/// The GID table's entry. `Err` is EINVAL outside the table, ENODATA for an empty entry.
fn gid_entry(device: &Device, port: u32, index: u32) -> Result<ibv_gid_entry, c_int> {
    if port != u32::from(PORT) {
        return Err(libc::EINVAL);
    }
    let within = (index as usize) < GID_TABLE_LEN;
    let gid = device.gid(index as usize).ok_or(if within { libc::ENODATA } else { libc::EINVAL })?;
    Ok(ibv_gid_entry {
        gid: ibv_gid(gid.0),
        gid_index: index,
        port_num: port,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: device.ifindex,
    })
}

/// An entry of the GID table.
///
/// # Safety
/// C ABI: see `ibv_query_gid(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller passes an open context.
    let device = unsafe { device_of(context) };
    let entry = u32::try_from(index)
        .map_err(|_| libc::EINVAL)
        .and_then(|index| gid_entry(device, port.into(), index));
    let value = match entry {
        Ok(entry) => entry.gid,
        Err(libc::ENODATA) => ibv_gid([0; 16]),
        Err(errno) => {
            set_errno(errno);
            return -1;
        }
    };
    // SAFETY: the caller passes a place for the GID.
    unsafe { *gid = value };
    0
}

/// An entry of the GID table, with its type and interface.
///
/// # Safety
/// C ABI: see `ibv_query_gid_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    if flags != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller passes an open context.
    let device = unsafe { device_of(context) };
    code(gid_entry(device, port, index).map(|found| {
        // SAFETY: the caller passes room of the stated size.
        unsafe { copy_sized(&found, entry, entry_size) };
    }))
}

/// All entries of the GID table; returns how many, or a negative error.
///
/// # Safety
/// C ABI: see `ibv_query_gid_table(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    if flags != 0 {
        return -(fail(libc::EOPNOTSUPP) as isize);
    }
    // SAFETY: the caller passes an open context.
    let device = unsafe { device_of(context) };
    let mut count = 0;
    for index in 0..device.gids.len() {
        let Ok(found) = gid_entry(device, PORT.into(), index as u32) else { continue };
        if count == max_entries {
            return -(fail(libc::EINVAL) as isize);
        }
        // SAFETY: the caller passes room for `max_entries` entries of the stated size.
        unsafe { copy_sized(&found, entries.byte_add(count * entry_size), entry_size) };
        count += 1;
    }
    count as isize
}

/// The type of a GID table entry, in the numbers of sysfs. A private call that programs use anyway.
///
/// # Safety
/// C ABI: an open context, and a place for the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    // SAFETY: the caller passes an open context.
    match gid_entry(unsafe { device_of(context) }, port.into(), index) {
        Ok(_) => {
            // SAFETY: the caller passes a place for the type.
            unsafe { *gid_type = IBV_GID_TYPE_SYSFS_ROCE_V2 };
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// An entry of the partition key table, in network order.
///
/// # Safety
/// C ABI: see `ibv_query_pkey(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port != PORT || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller passes a place for the key.
    unsafe { *pkey = PKEY.to_be() };
    0
}

/// Where a partition key is in the table, or -1.
///
/// # Safety
/// C ABI: see `ibv_get_pkey_index(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if port == PORT && u16::from_be(pkey) == PKEY {
        return 0;
    }
    set_errno(libc::EINVAL);
    -1
}

/// `ibv_query_rt_values_ex(3)`: the clock of completion timestamps.
pub(crate) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller passes valid values.
    let values = unsafe { &mut *values };
    if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    let now = crate::host::now_ns();
    values.raw_clock =
        libc::timespec { tv_sec: (now / 1_000_000_000) as _, tv_nsec: (now % 1_000_000_000) as libc::c_long };
    values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    0
}
