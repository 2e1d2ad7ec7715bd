//! What a flow under way takes of the host's memory, by an allocator that counts. A file of its own, because
//! the allocator counts for the whole process.
#![allow(clippy::print_stdout, reason = "a test")]

use adverb_sim::Scenario;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with its blocks summed up as glibc cuts them: 8 bytes more, in multiples of 16.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn block(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

fn took(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

// SAFETY: every call goes on to the system's allocator as it came; counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(block(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    // Not the default, which would touch every page of the region that hosts register.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(block(layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(block(layout.size()), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    // Not the default, which would have large tables twice for a moment; the kernel moves their pages.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_sub(block(layout.size()), Ordering::Relaxed);
        took(block(size));
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// All to all at once in a fat-tree of 128 hosts; `transport` is a scenario's table.
fn bytes_a_flow(transport: &str) -> f64 {
    let text = format!(
        r#"
        [topology]
        kind = "fat-tree"
        k = 8
        rate = "100G"
        delay = "1us"
        [switch]
        buffer = "64MB"
        [switch.pfc]
        xoff = "15 packets"
        xon = "12 packets"
        [transport]
        {transport}
        [workload]
        kind = "all-to-all"
        bytes = "1000B"
        "#
    );
    let mut plan = Scenario::parse(&text).unwrap().plan(&mut |_| unreachable!()).unwrap();
    let mut sim = plan.fabric().unwrap();
    let idle = LIVE.load(Ordering::Relaxed) - block(size_of_val(plan.flows.as_slice()));
    PEAK.store(0, Ordering::Relaxed);
    plan.begin(&mut sim);
    plan.run(&mut sim, &mut |_| {});
    assert!(sim.flows_done());
    assert_eq!(sim.flows_at_once(), 128 * 127, "all were under way together");
    let each = (PEAK.load(Ordering::Relaxed) - idle) as f64 / f64::from(sim.flows_at_once());
    println!("{transport}: {each:.0} B a flow, {} packets", sim.stats().packets_peak);
    each
}

/// With everything that grows while flows run: queue pairs, requests, records, packets under way, events,
/// timers. Once in a process: memory of send queues is kept for the next ones.
#[test]
fn a_flow_under_way_takes_at_most_a_kilobyte() {
    let each = bytes_a_flow("mtu = 1024");
    assert!(each <= 1024.0, "{each:.0} bytes a flow");
}
