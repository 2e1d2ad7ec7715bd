//! What both ends have: a NIC over UDP, a region, queue pairs.

use adverb_bench::Options;
use adverb_io::{Host, PathPolicy, Settings, Transport};
use adverb_nic::{
    Access, CqId, MrInfo, MrInit, Mtu, PdId, QpAttr, QpAttrMask, QpCaps, QpId, QpInit, QpState,
};
use adverb_wire::{Gid, QpNumber};
use std::cell::UnsafeCell;
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes of the region; what is used again and again stays in a cache.
pub const REGION: usize = 1 << 16;

/// One end.
pub struct End {
    pub host: Arc<Host>,
    pub pd: PdId,
    pub cq: CqId,
    pub mr: MrInfo,
    /// Stays where it is until the process ends.
    pub region: &'static [UnsafeCell<u64>],
    pub gid: Gid,
    pub star: bool,
}

pub fn said(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

impl End {
    /// Opens the NIC of `--address`; `role` is its side of StaR.
    pub fn open(options: &Options, role: Transport) -> Result<End, String> {
        let address: String = options.get("address", String::new())?;
        let address = address.parse::<IpAddr>().map_err(|_| "--address wants an IP address")?;
        let (star, star_single_answers) = match options.get("transport", "star".to_owned())?.as_str() {
            "rc" => (false, false),
            "star" => (true, false),
            "star-single" => (true, true),
            other => return Err(format!("--transport {other}: rc, star or star-single")),
        };
        let transport = if star { role } else { Transport::Rc };
        let path = PathPolicy::Udp;
        let settings =
            Settings { address: Some(address), transport, path, star_single_answers, ..Settings::default() };
        let host = Host::open(&settings, Box::new(|_| {})).map_err(|error| error.to_string())?;
        let region: Box<[UnsafeCell<u64>]> = (0..REGION / 8).map(|_| UnsafeCell::new(0)).collect();
        let region: &'static _ = Box::leak(region);
        let addr = region.as_ptr() as u64;
        let (pd, cq, mr) = host
            .control(|nic, _| {
                let pd = nic.memory().alloc_pd()?;
                let cq = nic.create_cq(1 << 16)?;
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
                let init = MrInit { pd, addr, len: REGION as u64, iova: addr, access };
                // SAFETY: the region is never freed, and its cells are the NIC's to write.
                let mr = unsafe { nic.memory().reg_mr(&init) }?;
                Ok((pd, cq, mr))
            })
            .map_err(|error: adverb_nic::Error| said(error))?;
        Ok(End { host, pd, cq, mr, region, gid: Gid::from(address), star })
    }

    /// A queue pair with room for so many sends.
    pub fn queue_pair(&self, max_send_wr: u32) -> Result<(QpId, QpNumber), String> {
        let caps = QpCaps { max_send_wr, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let made = self.host.control(|nic, _| {
            let id = nic.create_qp(&QpInit::rc(self.pd, self.cq, caps))?;
            Ok((id, nic.qp_number(id)?))
        });
        made.map_err(|error: adverb_nic::Error| said(error))
    }

    /// Connects it.
    pub fn connect(&self, id: QpId, gid: Gid, number: QpNumber) -> Result<(), String> {
        use QpAttrMask as M;
        let path = self.host.resolve(gid, number);
        let modified = self.host.control(|nic, now| {
            let (mut a, _): (QpAttr, _) = nic.query_qp(id)?;
            a.state = QpState::Init;
            a.port = 1;
            a.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            nic.modify_qp(now, id, &a, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS)?;
            (a.state, a.path_mtu, a.dest_qpn, a.av.dgid, a.path) =
                (QpState::Rtr, Mtu::M1024, number, gid, path);
            (a.max_dest_rd_atomic, a.max_rd_atomic) = (16, 16);
            let rtr =
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
            nic.modify_qp(now, id, &a, M::STATE | rtr)?;
            a.state = QpState::Rts;
            (a.timeout, a.retry_cnt, a.rnr_retry) = (14, 7, 7);
            let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC | M::SQ_PSN;
            nic.modify_qp(now, id, &a, M::STATE | rts)
        });
        modified.map_err(said)
    }
}
