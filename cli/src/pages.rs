//! Huge pages for a simulation: its hosts, packets and queues are far more memory than the processor keeps
//! addresses of small pages for, and a fabric of 1,024 hosts runs a tenth faster on large ones. glibc's
//! allocator asks the kernel for them (`madvise`) if a tunable says so, which it reads when a process starts;
//! so the process starts itself again. Other C libraries ignore the tunable. No result depends on it.

use std::os::unix::process::CommandExt;

/// glibc's variable for tunables, separated by colons.
const TUNABLES: &str = "GLIBC_TUNABLES";
/// The tunable (glibc 2.35 and later).
const HUGE: &str = "glibc.malloc.hugetlb";

/// Starts this process again with huge pages, unless somebody has decided on them already. Where that cannot
/// be, goes on.
pub fn ask() {
    let given = std::env::var(TUNABLES).unwrap_or_default();
    let (Some(tunables), Ok(program)) = (with_huge(&given), std::env::current_exe()) else { return };
    let mut again = std::process::Command::new(program);
    again.args(std::env::args_os().skip(1)).env(TUNABLES, tunables);
    if let Some(name) = std::env::args_os().next() {
        again.arg0(name);
    }
    // It returns only if it fails: then small pages have to do.
    let _ = again.exec();
}

/// The tunables with huge pages; `None` if they name them already.
fn with_huge(given: &str) -> Option<String> {
    if given.contains(HUGE) {
        return None;
    }
    let rest = if given.is_empty() { String::new() } else { format!("{given}:") };
    Some(format!("{rest}{HUGE}=1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_set_stays() {
        assert_eq!(with_huge("").as_deref(), Some("glibc.malloc.hugetlb=1"));
        assert_eq!(
            with_huge("glibc.malloc.perturb=7").as_deref(),
            Some("glibc.malloc.perturb=7:glibc.malloc.hugetlb=1")
        );
        assert_eq!(with_huge("glibc.malloc.hugetlb=0"), None, "also against them");
    }
}
