//! `include/amalgam_map.h` in Rust, and the functions that a library defines.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use libloading::Library;

/// The version that this program was built with: `AMALGAM_MAP_ABI`.
pub const ABI: u32 = 1;

/// The length that stands for a miss: `AMALGAM_MAP_MISS` of the C header.
pub const MISS: usize = usize::MAX;

/// The settings of a map: `amalgam_map_settings` of the C header.
#[repr(C)]
pub struct Settings {
    pub settings_bytes: u64,
    pub expected_items: u64,
    pub threads: u64,
    pub memory_bytes: u64,
}

/// A key: `amalgam_map_key` of the C header.
#[repr(C)]
pub struct ForeignKey {
    pub bytes: *const u8,
    pub length: usize,
    pub hash: u64,
}

/// The buffer of an answer: `amalgam_map_answer` of the C header.
#[repr(C)]
pub struct Answer {
    pub bytes: *mut u8,
    pub room: usize,
    pub length: usize,
}

type Map = *mut c_void;
type Thread = *mut c_void;

/// The functions of a library.
#[derive(Clone, Copy)]
pub struct Functions {
    pub create: unsafe extern "C" fn(*const Settings, *mut c_char, usize) -> Map,
    pub destroy: unsafe extern "C" fn(Map),
    pub enter: unsafe extern "C" fn(Map) -> Thread,
    pub leave: unsafe extern "C" fn(Thread),
    pub get: unsafe extern "C" fn(Thread, *const ForeignKey, *mut Answer) -> c_int,
    pub put: unsafe extern "C" fn(Thread, *const ForeignKey, *const u8, usize) -> c_int,
    pub delete: unsafe extern "C" fn(Thread, *const ForeignKey) -> c_int,
    pub items: unsafe extern "C" fn(Map) -> u64,
    pub memory: unsafe extern "C" fn(Map) -> u64,
    pub get_batch: Option<unsafe extern "C" fn(Thread, *const ForeignKey, usize, *mut Answer)>,
    pub quiesce: Option<unsafe extern "C" fn(Thread)>,
}

/// Loads a library, once and for all.
///
/// # Errors
///
/// If there is no such library, it lacks a function, or it was built for another version.
pub fn load(path: &Path) -> anyhow::Result<Functions> {
    // Without a slash the loader would look in the system's folders only.
    let file = path.canonicalize().with_context(|| path.display().to_string())?;
    // SAFETY: runs the library's initializers. Whoever names it wants it run.
    let library = unsafe { Library::new(&file) }
        .with_context(|| format!("{} is no library that can be loaded", path.display()))?;
    let functions = functions(&library).with_context(|| path.display().to_string())?;
    // Never unloaded: threads that it started, and what C++ does when threads end, need its code.
    std::mem::forget(library);
    Ok(functions)
}

/// A function, or none if the library has none of that name.
fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: `F` is the type that the header gives to `name`; a library that lies about it cannot
    // be told from one that does not.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

fn functions(library: &Library) -> anyhow::Result<Functions> {
    type AbiFunction = unsafe extern "C" fn() -> u32;
    let Some(abi) = find::<AbiFunction>(library, "amalgam_map_abi") else {
        bail!("it does not define amalgam_map_abi: see amalgam_map.h, and its extern \"C\"");
    };
    // SAFETY: it takes nothing and answers a number.
    let abi = unsafe { abi() };
    ensure!(
        abi == ABI,
        "it was built for version {abi} of amalgam_map.h, this program is for version {ABI}"
    );
    let mut missing = Vec::new();
    macro_rules! required {
        ($name:literal) => {
            find(library, $name).or_else(|| {
                missing.push($name);
                None
            })
        };
    }
    let found = (
        required!("amalgam_map_create"),
        required!("amalgam_map_destroy"),
        required!("amalgam_map_enter"),
        required!("amalgam_map_leave"),
        required!("amalgam_map_get"),
        required!("amalgam_map_put"),
        required!("amalgam_map_delete"),
        required!("amalgam_map_items"),
        required!("amalgam_map_memory"),
    );
    let (
        Some(create),
        Some(destroy),
        Some(enter),
        Some(leave),
        Some(get),
        Some(put),
        Some(delete),
        Some(items),
        Some(memory),
    ) = found
    else {
        bail!("it does not define {}", missing.join(", "));
    };
    Ok(Functions {
        create,
        destroy,
        enter,
        leave,
        get,
        put,
        delete,
        items,
        memory,
        get_batch: find(library, "amalgam_map_get_batch"),
        quiesce: find(library, "amalgam_map_quiesce"),
    })
}
