//! Paths that cannot take a frame now, and the queue pairs that wait for them.

use crate::ids::PathId;
use crate::limits;

#[derive(Default)]
struct Path {
    blocked: bool,
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
    pub fn unpark(&mut self, path: PathId, qp: u32) {
        if let Some(p) = self.paths.get_mut(path.0 as usize) {
            p.parked.retain(|&i| i != qp);
        }
    }

    /// Unblocks a path; those who waited are returned.
    pub fn unblock(&mut self, path: PathId) -> Vec<u32> {
        match self.paths.get_mut(path.0 as usize) {
            Some(p) => {
                p.blocked = false;
                core::mem::take(&mut p.parked)
            }
            None => Vec::new(),
        }
    }
}
