//! Paths that cannot take a frame now, and the queue pairs that wait for them.

use crate::ids::PathId;
use crate::limits;

#[derive(Default)]
struct Path {
    blocked: bool,
    /// The driver has given up on it: datagrams do not wait for it any more.
    given_up: bool,
    parked: Vec<u32>,
}

/// State of the driver's paths. A path that was never blocked takes no memory.
#[derive(Default)]
pub(crate) struct Paths {
    paths: Vec<Path>,
}

impl Paths {
    /// Whether frames may not go there now.
    #[inline]
    pub fn is_blocked(&self, path: PathId) -> bool {
        self.paths.get(path.0 as usize).is_some_and(|p| p.blocked)
    }

    /// Whether datagrams wait for it.
    #[inline]
    pub fn holds_datagrams(&self, path: PathId) -> bool {
        self.paths.get(path.0 as usize).is_some_and(|p| p.blocked && !p.given_up)
    }

    /// Whether frames may not go somewhere.
    pub fn are_some_blocked(&self) -> bool {
        self.paths.iter().any(|path| path.blocked)
    }

    /// Blocks a path. Names beyond [`limits::MAX_PATHS`] are the driver's mistake.
    pub fn block(&mut self, path: PathId) {
        let at = path.0 as usize;
        assert!(at < limits::MAX_PATHS, "the driver named a path beyond the bound");
        if self.paths.len() <= at {
            self.paths.resize_with(at + 1, Path::default);
        }
        self.paths[at].blocked = true;
    }

    /// A queue pair waits.
    pub fn park(&mut self, path: PathId, qp: u32) {
        if let Some(p) = self.paths.get_mut(path.0 as usize) {
            p.parked.push(qp);
        }
    }

    /// A waiting queue pair goes away.
    pub fn unpark(&mut self, qp: u32) {
        for path in &mut self.paths {
            path.parked.retain(|&i| i != qp);
        }
    }

    /// Datagrams wait for a blocked path no longer; `is_datagram` tells who of those that waited goes on.
    pub fn give_up(&mut self, path: PathId, mut is_datagram: impl FnMut(u32) -> bool) -> Vec<u32> {
        let Some(p) = self.paths.get_mut(path.0 as usize).filter(|p| p.blocked) else { return Vec::new() };
        p.given_up = true;
        p.parked.extract_if(.., |index| is_datagram(*index)).collect()
    }

    /// Unblocks a path; those who waited are returned.
    pub fn unblock(&mut self, path: PathId) -> Vec<u32> {
        match self.paths.get_mut(path.0 as usize) {
            Some(p) => {
                (p.blocked, p.given_up) = (false, false);
                core::mem::take(&mut p.parked)
            }
            None => Vec::new(),
        }
    }
}
