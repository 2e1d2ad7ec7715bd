//! The two NICs that are attacked, what lies in their memory, and what ought to.

use crate::common::*;
use adverb_rma::{
    CongestionConfig, ExecutorConfig, Grant, Memory, OneRmaConfig, PathPolicy, Region, RegionKey, Rights,
    Rma, Settings,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

pub const LEN: usize = 4096;
/// Where the user's reads land, and its writes come from.
pub const SINK: usize = 0;
pub const SOURCE: usize = 2048;
/// Bytes that the session reads, and where it writes how many.
pub const READ: usize = 72;
pub const WRITE_AT: u64 = 1000;
pub const WRITE: usize = 40;
/// The region's key is always the same, as that of an owner that keeps it.
pub const KEY: [u8; 16] = [0x5a; 16];

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    Owner,
    User,
}

pub struct Owner {
    pub rma: Rma,
    pub far: Memory,
    pub region: Region,
}

pub struct User {
    pub rma: Rma,
    pub near: Memory,
}

/// Both, the right grant, and all their bytes as they should be.
pub struct Scene {
    folder: Folder,
    test: u8,
    pub owner: Option<Owner>,
    pub user: Option<Arc<User>>,
    pub grant: Grant,
    pub far: Vec<u8>,
    pub near: Vec<u8>,
}

fn open(folder: &Folder, test: u8, host: u8, slots: u32, adjust: &dyn Fn(&mut OneRmaConfig)) -> Rma {
    let mut settings = settings(folder, test, host);
    // The longest there are: while an operation is held, the attacker has as long.
    settings.nic.timeout = adverb_wire::Duration::from_ms(4000);
    settings.nic.dispatch_timeout = adverb_wire::Duration::from_ms(2000);
    // The man in the middle stands on the network.
    settings.path = PathPolicy::Udp;
    adjust(&mut settings.nic);
    // One command at a time, so that each message is a packet of its own.
    let one = CongestionConfig { window_start: 1.0, window_max: 1.0, ..CongestionConfig::default() };
    let executor = ExecutorConfig { congestion: one, ..settings.executor };
    Rma::open(Settings { executor, slots, ..settings }).unwrap()
}

impl Scene {
    pub fn new(name: &str, test: u8) -> Scene {
        Self::with(name, test, &|_| {})
    }

    /// An owner with some other setting.
    pub fn with(name: &str, test: u8, adjust: &dyn Fn(&mut OneRmaConfig)) -> Scene {
        let folder = Folder::new(name);
        let grant = Grant::new(address(test, 1).into(), adverb_rma::RegionId::from_wire(0), 0);
        let (far, near) = (vec![0; LEN], vec![0; LEN]);
        let mut scene = Scene { folder, test, owner: None, user: None, grant, far, near };
        scene.restart(&[Side::Owner, Side::User], adjust);
        scene
    }

    /// Ends one or both, and begins anew: the same addresses, process, region and keys, as after a crash.
    pub fn restart(&mut self, who: &[Side], adjust: &dyn Fn(&mut OneRmaConfig)) {
        if who.contains(&Side::Owner) {
            self.owner = None;
            let rma = open(&self.folder, self.test, 1, 16, adjust);
            let far = rma.allocate(LEN).unwrap();
            let region = far.register_with_key(0..LEN, Rights::all(), RegionKey::new(KEY)).unwrap();
            let grant = region.grant(address(self.test, 2), std::process::id(), Rights::all()).unwrap();
            let before = std::mem::replace(&mut self.grant, grant);
            assert!(
                before.is_empty() || before.to_bytes() == self.grant.to_bytes(),
                "what was granted holds"
            );
            self.owner = Some(Owner { rma, far, region });
            self.far.fill(0);
        }
        if who.contains(&Side::User) {
            self.user = None;
            // One slot, so that each operation has the slot of all before it.
            let rma = open(&self.folder, self.test, 2, 1, &|_| {});
            let near = rma.allocate(LEN).unwrap();
            self.user = Some(Arc::new(User { rma, near }));
            self.near.fill(0);
        }
    }

    pub fn owner(&self) -> &Owner {
        self.owner.as_ref().unwrap()
    }

    pub fn user(&self) -> &Arc<User> {
        self.user.as_ref().unwrap()
    }

    pub fn rma(&self, side: Side) -> &Rma {
        if side == Side::Owner { &self.owner().rma } else { &self.user().rma }
    }

    pub fn address(&self, host: u8) -> IpAddr {
        address(self.test, host)
    }

    /// Gives both other bytes than they ever had, everywhere.
    pub fn refresh(&mut self, salt: u8) {
        self.far = pattern(LEN).into_iter().map(|byte| byte ^ salt).collect();
        self.near = pattern(LEN).into_iter().map(|byte| byte.wrapping_mul(5) ^ salt).collect();
        self.owner().far.write(0, &self.far);
        self.user().near.write(0, &self.near);
    }

    /// What the session's read changes.
    pub fn has_read(&mut self) {
        self.near[SINK..SINK + READ].copy_from_slice(&self.far[..READ]);
    }

    /// What its write changes.
    pub fn has_written(&mut self) {
        let at = WRITE_AT as usize;
        self.far[at..at + WRITE].copy_from_slice(&self.near[SOURCE..SOURCE + WRITE]);
    }

    /// Not a byte is different from what it should be.
    pub fn check(&self, when: &str) {
        let (owner, user) = (self.owner(), self.user());
        for (whose, is, should) in [("owner", &owner.far, &self.far), ("user", &user.near, &self.near)] {
            let is = is.to_vec(0..LEN);
            let wrong = (0..LEN).find(|i| is[*i] != should[*i]);
            assert_eq!(wrong, None, "first changed byte of the {whose}'s memory, {when}");
        }
    }

    /// All that a NIC counts, but for what says only how much passed by or how long it took.
    pub fn counts(&self, side: Side) -> BTreeMap<&'static str, u64> {
        let told = |name: &str| {
            !name.starts_with("rx_")
                && !name.starts_with("tx_")
                && !["keys_derived", "solicitations_expired"].contains(&name)
        };
        self.rma(side).counters().0.iter().filter(|(name, _)| told(name)).collect()
    }

    pub fn count(&self, side: Side, name: &str) -> u64 {
        let found = self.rma(side).counters().0.iter().find(|(found, _)| *found == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }
}
