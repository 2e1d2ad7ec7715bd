//! From the pointers that C holds to this crate's objects and back.
//!
//! Every object begins with its C struct, so that one pointer serves both sides (a queue pair ends with it:
//! see there). The C part sits in an `UnsafeCell`, because programs read and write its public fields behind
//! our back; it is only touched through raw pointers. All else in an object is immutable, atomic or locked,
//! so shared references from several threads are sound.

use core::ffi::c_int;

/// Implements the three conversions for an object whose first field is its C struct.
macro_rules! handle {
    ($object:ty, $c:ty) => {
        impl $object {
            /// The object behind a C pointer.
            ///
            /// # Safety
            /// `pointer` came from the call that creates this kind of object, and the object has not
            /// been destroyed and is not being destroyed meanwhile.
            #[inline]
            #[allow(dead_code, reason = "each object needs some of the three")]
            pub(crate) unsafe fn of<'a>(pointer: *mut $c) -> &'a Self {
                // SAFETY: by the caller's promise this is a live object, and `give` made it.
                unsafe { &*pointer.cast::<Self>() }
            }

            /// Hands the object to C.
            #[allow(dead_code, reason = "each object needs some of the three")]
            pub(crate) fn give(self) -> *mut $c {
                Box::into_raw(Box::new(self)).cast()
            }

            /// Takes the object back, to be dropped.
            ///
            /// # Safety
            /// As for `of`; and nobody uses the pointer afterwards.
            #[allow(dead_code, reason = "each object needs some of the three")]
            pub(crate) unsafe fn take(pointer: *mut $c) -> Box<Self> {
                // SAFETY: `give` boxed it, and the caller gives it up.
                unsafe { Box::from_raw(pointer.cast::<Self>()) }
            }
        }
    };
}
pub(crate) use handle;

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// The way in which calls that create objects fail: errno and NULL.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    core::ptr::null_mut()
}

/// Result to the pointer of a call that creates an object.
pub(crate) fn pointer_or_null<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(null)
}

/// The way in which calls that return an error number fail: errno has it too, because programs print that.
#[cold]
pub(crate) fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    errno
}

/// As [`fail`], of a number that is 0 for success.
#[inline]
pub(crate) fn outcome(errno: c_int) -> c_int {
    if errno == 0 { 0 } else { fail(errno) }
}

/// Result to the error number of a call that returns one.
pub(crate) fn code(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

/// A mutex of a C struct, initialised as a static one.
pub(crate) const MUTEX: libc::pthread_mutex_t = libc::PTHREAD_MUTEX_INITIALIZER;
/// A condition variable of a C struct, initialised as a static one.
pub(crate) const COND: libc::pthread_cond_t = libc::PTHREAD_COND_INITIALIZER;
