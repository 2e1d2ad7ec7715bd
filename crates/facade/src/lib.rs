//! A library to preload (`adverb run --facade preload`): programs find adverb's device in sysfs and /dev,
//! where no mount can show it. Paths below `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! `/dev/infiniband` lead into the folder that the variable `ADVERB_FACADE` names; all else goes to libc as
//! it came. Listings of `/sys/class` and `/dev` stay the host's; system calls without libc are not seen.
//!
//! It is in every process of a run, so it allocates nothing, starts nothing, and calls nothing of Rust's
//! library that would come back here.
#![allow(clippy::missing_safety_doc, reason = "each is libc's call of that name, with its contract")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

const VARIABLE: &CStr = c"ADVERB_FACADE";
/// What leads elsewhere, at a component's end.
const SHOWN: [&[u8]; 3] = [b"/sys/class/infiniband_verbs", b"/sys/class/infiniband", b"/dev/infiniband"];
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Room for one path.
struct Room(MaybeUninit<[u8; PATH_MAX]>);

impl Room {
    fn new() -> Room {
        Room(MaybeUninit::uninit())
    }

    /// The path to be used instead of this one: itself, unless it is one that leads elsewhere.
    ///
    /// # Safety
    /// `path` is null or a C string.
    unsafe fn shown(&mut self, path: *const c_char) -> *const c_char {
        // The first bytes are looked at one by one: most paths differ there.
        // SAFETY: a C string, read up to its end.
        unsafe {
            if path.is_null() || *path != b'/' as c_char || !matches!(*path.add(1) as u8, b's' | b'd') {
                return path;
            }
        }
        // SAFETY: a C string.
        let given = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
        if !leads_elsewhere(given) {
            return path;
        }
        let Some(root) = root() else { return path };
        let len = root.len() + given.len();
        if len > PATH_MAX {
            return path;
        }
        let room = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: both fit the room, with the terminating zero.
        unsafe {
            core::ptr::copy_nonoverlapping(root.as_ptr(), room, root.len());
            core::ptr::copy_nonoverlapping(given.as_ptr(), room.add(root.len()), given.len());
        }
        room.cast()
    }
}

/// Whether a path, with its terminating zero, is of the device.
fn leads_elsewhere(path: &[u8]) -> bool {
    SHOWN
        .iter()
        .any(|shown| path.strip_prefix(*shown).is_some_and(|rest| matches!(rest.first(), Some(b'/' | 0))))
}

/// The folder that has the device's files.
fn root() -> Option<&'static [u8]> {
    // SAFETY: the environment's strings stay where they are; a program that changes its environment while
    // another thread looks at files is in trouble with libc too.
    unsafe {
        let value = libc::getenv(VARIABLE.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes()).filter(|root| !root.is_empty())
    }
}

/// A path that libc found, as the program is to see it: without the folder before it.
///
/// # Safety
/// `path` is null or a C string that may be written.
unsafe fn seen(path: *mut c_char) -> *mut c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: by the caller's promise.
    let found = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    if let Some(rest) = root().and_then(|root| found.strip_prefix(root)).filter(|rest| rest[0] == b'/') {
        // SAFETY: the rest is inside the same string.
        unsafe { core::ptr::copy(rest.as_ptr().cast(), path, rest.len()) };
    }
    path
}

/// The next library's function of a name, looked up once.
struct Real(AtomicPtr<c_void>);

impl Real {
    const fn new() -> Real {
        Real(AtomicPtr::new(null_mut()))
    }

    fn find(&self, name: &'static CStr) -> *mut c_void {
        let known = self.0.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a C string.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if cfg!(target_env = "musl") && found.is_null() {
            found = without_64(name);
        }
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

/// musl's call of a name that ends in 64: from 1.2.4 on it has the one without alone, which does the same,
/// and leads older programs to that when it loads them.
fn without_64(name: &CStr) -> *mut c_void {
    let mut short = [0u8; 32];
    match name.to_bytes().strip_suffix(b"64") {
        Some(stem) if stem.len() < short.len() => {
            short[..stem.len()].copy_from_slice(stem);
            // SAFETY: a C string, since a zero is left behind the stem.
            unsafe { libc::dlsym(libc::RTLD_NEXT, short.as_ptr().cast()) }
        }
        _ => null_mut(),
    }
}

/// How a call fails that no other library has.
trait Fails {
    const FAILED: Self;
}

impl Fails for c_int {
    const FAILED: c_int = -1;
}

impl Fails for isize {
    const FAILED: isize = -1;
}

impl<T> Fails for *mut T {
    const FAILED: *mut T = null_mut();
}

/// Defines libc's calls that take a path, each after its arguments before it and followed by those behind.
macro_rules! with_path {
    ($($name:ident(
        $($pre:ident: $p:ty),*; path; $($post:ident: $q:ty),* $(; ...$rest:ident: $r:ty)?
    ) -> $ret:ty,)*) => {$(
        #[doc = "libc's call of this name, of the path that is to be used."]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($pre: $p,)* path: *const c_char, $($post: $q,)* $($rest: $r,)?
        ) -> $ret {
            type Call = unsafe extern "C" fn($($p,)* *const c_char, $($q,)* $($r,)?) -> $ret;
            static REAL: Real = Real::new();
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let real = REAL.find(NAME);
            if real.is_null() {
                // SAFETY: the calling thread's own.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                return <$ret as Fails>::FAILED;
            }
            let mut room = Room::new();
            // SAFETY: libc's function of this name has this type (the optional last argument of `open` is
            // passed as a fixed one would be), and gets what the caller passed, or another path.
            unsafe {
                let real = core::mem::transmute::<*mut c_void, Call>(real);
                real($($pre,)* room.shown(path), $($post,)* $($rest,)?)
            }
        }
    )*};
}

with_path! {
    stat(; path; out: *mut c_void) -> c_int,
    stat64(; path; out: *mut c_void) -> c_int,
    lstat(; path; out: *mut c_void) -> c_int,
    lstat64(; path; out: *mut c_void) -> c_int,
    __xstat(version: c_int; path; out: *mut c_void) -> c_int,
    __xstat64(version: c_int; path; out: *mut c_void) -> c_int,
    __lxstat(version: c_int; path; out: *mut c_void) -> c_int,
    __lxstat64(version: c_int; path; out: *mut c_void) -> c_int,
    fstatat(folder: c_int; path; out: *mut c_void, flags: c_int) -> c_int,
    fstatat64(folder: c_int; path; out: *mut c_void, flags: c_int) -> c_int,
    __fxstatat(version: c_int, folder: c_int; path; out: *mut c_void, flags: c_int) -> c_int,
    __fxstatat64(version: c_int, folder: c_int; path; out: *mut c_void, flags: c_int) -> c_int,
    statx(folder: c_int; path; flags: c_int, mask: c_uint, out: *mut c_void) -> c_int,
    access(; path; mode: c_int) -> c_int,
    eaccess(; path; mode: c_int) -> c_int,
    euidaccess(; path; mode: c_int) -> c_int,
    faccessat(folder: c_int; path; mode: c_int, flags: c_int) -> c_int,
    open(; path; flags: c_int; ...mode: c_uint) -> c_int,
    open64(; path; flags: c_int; ...mode: c_uint) -> c_int,
    __open_2(; path; flags: c_int) -> c_int,
    __open64_2(; path; flags: c_int) -> c_int,
    openat(folder: c_int; path; flags: c_int; ...mode: c_uint) -> c_int,
    openat64(folder: c_int; path; flags: c_int; ...mode: c_uint) -> c_int,
    __openat_2(folder: c_int; path; flags: c_int) -> c_int,
    __openat64_2(folder: c_int; path; flags: c_int) -> c_int,
    fopen(; path; mode: *const c_char) -> *mut c_void,
    fopen64(; path; mode: *const c_char) -> *mut c_void,
    opendir(; path;) -> *mut c_void,
    scandir(; path; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int,
    scandir64(; path; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int,
    readlink(; path; out: *mut c_char, room: usize) -> isize,
    __readlink_chk(; path; out: *mut c_char, room: usize, size: usize) -> isize,
    readlinkat(folder: c_int; path; out: *mut c_char, room: usize) -> isize,
    __readlinkat_chk(folder: c_int; path; out: *mut c_char, room: usize, size: usize) -> isize,
}

/// Calls whose answer is a path.
mod resolved {
    use super::*;

    /// How libc's `realpath` is called.
    type Call = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;

    /// # Safety
    /// As for `realpath(3)`.
    unsafe fn real(path: *const c_char, out: *mut c_char) -> *mut c_char {
        static REAL: Real = Real::new();
        let real = REAL.find(c"realpath");
        if real.is_null() {
            // SAFETY: the calling thread's own.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return null_mut();
        }
        let mut room = Room::new();
        // SAFETY: libc's function has this type, and what it returns is a string that the caller may write.
        unsafe { seen(core::mem::transmute::<*mut c_void, Call>(real)(room.shown(path), out)) }
    }

    /// libc's call of this name.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
        // SAFETY: as the caller promises.
        unsafe { real(path, out) }
    }

    /// libc's call of this name: the buffer is as large as it must be, which its caller's compiler has seen.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn __realpath_chk(
        path: *const c_char,
        out: *mut c_char,
        _size: usize,
    ) -> *mut c_char {
        // SAFETY: as the caller promises.
        unsafe { real(path, out) }
    }

    /// libc's call of this name.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        // SAFETY: as the caller promises.
        unsafe { real(path, null_mut()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_leads_elsewhere() {
        for path in [
            &b"/sys/class/infiniband\0"[..],
            b"/sys/class/infiniband/adverb0/ports\0",
            b"/sys/class/infiniband_verbs/uverbs0\0",
            b"/dev/infiniband/uverbs0\0",
        ] {
            assert!(leads_elsewhere(path), "{path:?}");
        }
        for path in [
            &b"/sys/class/infiniband_mad\0"[..],
            b"/sys/class/infiniband2/x\0",
            b"/sys/class/net/lo\0",
            b"/dev/infinibandx\0",
            b"/sys\0",
            b"/\0",
        ] {
            assert!(!leads_elsewhere(path), "{path:?}");
        }
    }
}
