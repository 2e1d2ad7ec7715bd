//! A program that calls and calls and never waits makes no progress: the rule and its words, the same in
//! every world. A simulation ends such a program; on a host it is told so once.

/// Calls since a program last waited for anything, after which it is taken to make no progress.
pub const CALLS_UNWAITED: u64 = 1_000_000;

/// What is said of such a program: its name, and `calls` that came `how`.
pub fn without_progress(name: &str, calls: u64, how: &str) -> String {
    format!("{name} makes no progress: {calls} calls {how} without waiting for anything")
}
