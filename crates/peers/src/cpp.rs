//! Peers written in C++, behind the C interfaces in `cpp/`.

use crate::rust::NumberMap;

/// A map behind five C functions with one prefix.
macro_rules! foreign_map {
    ($(#[$about:meta])* $map:ident: $new:ident $drop:ident $get:ident $set:ident $slots:ident
        $items:ident) => {
        $(#[$about])*
        pub struct $map(std::ptr::NonNull<std::ffi::c_void>);

        // SAFETY: the C++ maps are made to be shared by threads, and belong to none.
        unsafe impl Send for $map {}
        // SAFETY: as above.
        unsafe impl Sync for $map {}

        // SAFETY: as the C++ files declare them.
        unsafe extern "C" {
            fn $new(items: usize) -> *mut std::ffi::c_void;
            fn $drop(map: *mut std::ffi::c_void);
            fn $get(map: *const std::ffi::c_void, key: u64, value: *mut u64) -> bool;
            fn $set(map: *mut std::ffi::c_void, key: u64, value: u64);
            fn $slots(map: *const std::ffi::c_void) -> usize;
            fn $items(map: *const std::ffi::c_void) -> usize;
        }

        impl NumberMap for $map {
            fn with_room(items: usize) -> Self {
                // SAFETY: makes a map; memory that runs out ends the process.
                let map = unsafe { $new(items) };
                Self(std::ptr::NonNull::new(map).expect("new never answers null"))
            }

            #[inline]
            fn read(&self, key: u64) -> Option<u64> {
                let mut value = 0;
                // SAFETY: our map, and a place for the value.
                unsafe { $get(self.0.as_ptr(), key, &mut value) }.then_some(value)
            }

            #[inline]
            fn write(&self, key: u64, value: u64) {
                // SAFETY: our map.
                unsafe { $set(self.0.as_ptr(), key, value) }
            }

            fn items_and_slots(&self) -> (usize, usize) {
                // SAFETY: our map.
                unsafe { ($items(self.0.as_ptr()), $slots(self.0.as_ptr())) }
            }
        }

        impl Drop for $map {
            fn drop(&mut self) {
                // SAFETY: our map, which nobody uses any more.
                unsafe { $drop(self.0.as_ptr()) }
            }
        }
    };
}

#[cfg(has_libcuckoo)]
foreign_map! {
    /// libcuckoo: cuckoo hashing with a spinlock a stripe of buckets.
    Libcuckoo: amalgam_libcuckoo_new amalgam_libcuckoo_drop amalgam_libcuckoo_get
        amalgam_libcuckoo_set amalgam_libcuckoo_slots amalgam_libcuckoo_items
}

#[cfg(has_tbb)]
foreign_map! {
    /// TBB's concurrent_hash_map: chains with a lock an item.
    Tbb: amalgam_tbb_new amalgam_tbb_drop amalgam_tbb_get amalgam_tbb_set amalgam_tbb_slots
        amalgam_tbb_items
}
