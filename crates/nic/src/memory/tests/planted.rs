//! Planted bugs, one for each tool that must find it: `scripts/sanitize.sh` runs them by name and fails where
//! a tool stays silent. Without a tool they are not run.

use super::super::copy as raw;
use core::cell::UnsafeCell;

/// One byte beyond a buffer, through the room's own copy. AddressSanitizer and Miri find it.
#[test]
#[ignore = "a planted bug, for tools"]
fn overflow() {
    let (source, mut target) = (vec![1u8; 64], vec![0u8; 40]);
    let len = target.len() + 1;
    // SAFETY: none: the target is a byte too short, on purpose.
    unsafe { raw::copy(target.as_mut_ptr(), source.as_ptr(), len, raw::Source::Arrived) };
    println!("not found: {}", target[39]);
}

/// Two threads, one word, and nothing between them. ThreadSanitizer and Miri find it.
#[test]
#[ignore = "a planted bug, for tools"]
fn race() {
    struct Word(UnsafeCell<u64>);
    // SAFETY: none: accesses race, on purpose.
    unsafe impl Sync for Word {}
    static WORD: Word = Word(UnsafeCell::new(0));
    let add = || {
        for _ in 0..1000 {
            // SAFETY: none, as above.
            unsafe { *WORD.0.get() += 1 };
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(add);
        threads.spawn(add);
    });
    // SAFETY: both threads have ended.
    println!("not found: {}", unsafe { *WORD.0.get() });
}
