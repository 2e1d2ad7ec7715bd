//! Finding the directory of adverb's libibverbs.so.1.

use crate::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The name that programs ask the dynamic linker for.
pub const SONAME: &str = "libibverbs.so.1";

const DIRECT_SONAME: &str = "libmlx5.so.1";

/// The directory that holds the library: `ADVERB_LIB` if set, else beside the executable (`lib/` of a build
/// directory), else where `make install` puts it.
pub fn directory(setting: Option<&OsStr>, executable: &Path) -> Result<PathBuf, Error> {
    if let Some(named) = setting.filter(|s| !s.is_empty()) {
        let named = PathBuf::from(named);
        return if named.join(SONAME).is_file() {
            absolute(&named)
        } else {
            Err(Error::BadLibraryDirectory(named))
        };
    }
    let tried = candidates(executable);
    match tried.iter().find(|d| d.join(SONAME).is_file()) {
        Some(found) => absolute(found),
        None => Err(Error::NoLibrary { tried }),
    }
}

/// The directory of the direct verbs, beside the verbs library: one of its own, so that only who asks for
/// them has them in its path.
pub fn direct_verbs(library: &Path) -> Result<PathBuf, Error> {
    let directory = library.join("mlx5dv");
    if directory.join(DIRECT_SONAME).is_file() { Ok(directory) } else { Err(Error::NoDirectVerbs(directory)) }
}

fn candidates(executable: &Path) -> Vec<PathBuf> {
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let mut list = vec![beside.join("lib"), beside.to_path_buf()];
    if let Some(prefix) = beside.parent() {
        list.push(prefix.join("lib/adverb"));
    }
    list
}

/// The program may change its working directory before a child of its loads the library.
fn absolute(directory: &Path) -> Result<PathBuf, Error> {
    directory.canonicalize().map_err(|_| Error::BadLibraryDirectory(directory.to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("adverb-library-{name}-{}", std::process::id()));
        fs::remove_dir_all(&directory).ok();
        fs::create_dir_all(&directory).unwrap();
        directory.canonicalize().unwrap()
    }

    #[test]
    fn the_build_directory_comes_first_then_the_installed_one() {
        let top = scratch("order");
        let executable = top.join("bin/adverb");
        let installed = top.join("lib/adverb");
        let built = top.join("bin/lib");
        for directory in [&installed, &built] {
            fs::create_dir_all(directory).unwrap();
            let found = super::directory(None, &executable);
            assert!(matches!(found, Err(Error::NoLibrary { tried }) if tried.len() == 3));
        }
        fs::write(installed.join(SONAME), "").unwrap();
        assert_eq!(super::directory(None, &executable).unwrap(), installed);
        fs::write(built.join(SONAME), "").unwrap();
        assert_eq!(super::directory(None, &executable).unwrap(), built);
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn direct_verbs_are_beside_the_library() {
        let top = scratch("direct");
        let missing = direct_verbs(&top);
        assert!(matches!(missing, Err(Error::NoDirectVerbs(d)) if d == top.join("mlx5dv")));
        fs::create_dir(top.join("mlx5dv")).unwrap();
        fs::write(top.join("mlx5dv").join(DIRECT_SONAME), "").unwrap();
        assert_eq!(direct_verbs(&top).unwrap(), top.join("mlx5dv"));
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn adverb_lib_decides_alone() {
        let top = scratch("setting");
        let executable = top.join("adverb");
        fs::write(top.join(SONAME), "").unwrap();
        let elsewhere = top.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let refused = super::directory(Some(elsewhere.as_os_str()), &executable);
        assert!(matches!(refused, Err(Error::BadLibraryDirectory(d)) if d == elsewhere));
        fs::write(elsewhere.join(SONAME), "").unwrap();
        assert_eq!(super::directory(Some(elsewhere.as_os_str()), &executable).unwrap(), elsewhere);
        assert_eq!(super::directory(Some(OsStr::new("")), &executable).unwrap(), top, "empty means unset");
        fs::remove_dir_all(top).unwrap();
    }
}
