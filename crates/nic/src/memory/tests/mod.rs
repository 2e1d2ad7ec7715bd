//! The room's rules one by one, against a model, and from several threads.

#[cfg(all(not(any(miri, adverb_portable_copy)), target_arch = "x86_64"))]
mod bench;
mod checks;
mod copies;
mod model;
mod planted;
mod threads;
mod windows;

use super::*;
use crate::ids::PdId;
use adverb_wire::{Key, QpNumber};
use std::alloc::{Layout, alloc_zeroed, dealloc};

const QP: QpNumber = QpNumber::new(0x11);
const QP2: QpNumber = QpNumber::new(0x12);

/// Everything a region can grant.
const ALL: Access = Access::from_bits_retain(0x1f);

/// Zeroed page-aligned memory that plays an application's buffer. Only raw accesses.
struct Host {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: an allocation, accessed through pointers only.
unsafe impl Sync for Host {}

impl Host {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: no test asks for 0 bytes.
        let ptr = unsafe { alloc_zeroed(layout) };
        ptr.expose_provenance();
        Host { ptr, layout }
    }

    fn addr(&self) -> u64 {
        self.ptr.addr() as u64
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size());
        self.ptr.wrapping_add(offset)
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.layout.size());
        // SAFETY: inside the allocation; no test reads while another thread writes this way.
        (offset..offset + len).map(|i| unsafe { self.at(i).read() }).collect()
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the whole allocation; no thread runs beside it.
        unsafe { self.ptr.write_bytes(byte, self.layout.size()) }
    }

    fn span(&self, offset: usize, len: usize) -> Span {
        assert!(offset + len <= self.layout.size());
        // SAFETY: inside the allocation, which tests keep longer than its spans.
        unsafe { Span::new(self.addr() + offset as u64, len) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; all spans are gone.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}

/// Registers addresses that nothing accesses.
fn register(
    memory: &mut Memory,
    pd: PdId,
    addr: u64,
    len: u64,
    iova: u64,
    access: Access,
) -> Result<MrInfo, crate::error::Error> {
    // SAFETY: callers only check, or the bytes are a `Host` that outlives `memory`.
    unsafe { memory.reg_mr(&MrInit { pd, addr, len, iova, access }) }
}

fn start(result: Result<Span, AccessFault>) -> Result<(u64, usize), AccessFault> {
    result.map(|span| (span.addr(), span.len()))
}

#[test]
fn what_crosses_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Memory>();
    send::<Gather>();
    send::<QueueMemory>();
    send::<Payload<'static>>();
    send::<Span>();
    sync::<Memory>();
    sync::<Span>();
    sync::<QueueMemory>();
}

#[test]
fn every_fault_cites_its_rule() {
    use AccessFault::*;
    let all = [
        UnknownKey,
        Unbound,
        OtherDomain,
        OtherQp,
        OutOfBounds,
        MissingRight,
        Misaligned,
        NotInvalidatable,
        NotBindable,
        BadWindowRights,
        AlreadyBound,
        ForeignKey,
        EmptyBind,
    ];
    let mut rules: Vec<&str> = all.iter().map(|fault| fault.rule()).collect();
    assert!(rules.iter().all(|rule| rule.contains("IBTA") && !rule.contains('\n')));
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(rules.len(), all.len());
    assert_eq!(UnknownKey.to_string(), UnknownKey.rule());
    let _ = Key(0);
}

/// Lets a result go that only its making matters for.
fn ignore<T: Copy>(_: T) {}
