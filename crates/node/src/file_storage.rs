//! The segments of the log of backups, as files of one folder.
//!
//! Invariants of this module:
//! 1. One process uses a folder at a time: it holds a lock that ends with the process. One thread
//!    of it writes.
//! 2. A file of full length was written completely once and synced, so later writes into it need no
//!    new disk space. A shorter file is left over from a creation that was interrupted.
//! 3. No file is deleted, and no file is touched whose name is not one of a segment or the lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use amalgam_cluster::log::{Storage, StorageError};

/// Name of the file that is locked.
const LOCK: &str = "lock";
const PREFIX: &str = "segment-";
/// Length of the writes that fill a new segment with zeros.
const ZEROS_BYTES: usize = 1 << 20;

/// The folder of one node's log, locked against other processes.
#[derive(Debug)]
pub struct FileStorage {
    folder: PathBuf,
    files: BTreeMap<u32, File>,
    /// Segments that were written to since the last sync.
    unsynced: BTreeSet<u32>,
    /// Holds the lock until it is closed.
    _lock: File,
}

impl FileStorage {
    /// Opens a folder, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// If another process uses the folder, or the system refuses; the text names the folder.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("backups in {}: {error}", folder.display()))
        };
        let open = || {
            std::fs::create_dir_all(folder)?;
            let lock = folder.join(LOCK);
            let lock = OpenOptions::new().create(true).write(true).truncate(false).open(lock)?;
            lock.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => io::Error::other(
                    "another process uses this folder: give each node its own (--backup-dir)",
                ),
                TryLockError::Error(error) => error,
            })?;
            Ok(Self {
                folder: folder.to_owned(),
                files: BTreeMap::new(),
                unsynced: BTreeSet::new(),
                _lock: lock,
            })
        };
        open().map_err(named)
    }

    fn path(&self, segment: u32) -> PathBuf {
        self.folder.join(format!("{PREFIX}{segment:08x}"))
    }

    fn file(&self, segment: u32) -> io::Result<&File> {
        self.files.get(&segment).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn find(&mut self) -> io::Result<Vec<(u32, u32)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let (entry, number) = entry.map(|entry| {
                let name = entry.file_name();
                let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
                let number = number.filter(|digits| digits.len() == 8);
                (entry, number.and_then(|digits| u32::from_str_radix(digits, 16).ok()))
            })?;
            let Some(segment) = number else { continue };
            let file = OpenOptions::new().read(true).write(true).open(entry.path())?;
            let bytes = u32::try_from(file.metadata()?.len()).unwrap_or(u32::MAX);
            self.files.insert(segment, file);
            found.push((segment, bytes));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn make(&mut self, segment: u32, bytes: u32) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(self.path(segment))?;
        if let Err(error) = Self::fill(&file, bytes) {
            // Gives the disk space back.
            let _ = file.set_len(0);
            return Err(error);
        }
        // The name of the file must survive a power loss as well.
        File::open(&self.folder)?.sync_all()?;
        self.files.insert(segment, file);
        Ok(())
    }

    fn fill(mut file: &File, bytes: u32) -> io::Result<()> {
        let zeros = vec![0; ZEROS_BYTES.min(bytes as usize)];
        let mut left = bytes as usize;
        while left > 0 {
            let count = left.min(zeros.len());
            file.write_all(&zeros[..count])?;
            left -= count;
        }
        file.sync_all()
    }
}

/// Logs an error of the system, and reduces it to what the cluster's log distinguishes.
fn told(doing: &'static str, error: io::Error) -> StorageError {
    log::error!(doing, error:%; "the log of backups failed");
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StorageError::Full,
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => StorageError::ReadOnly,
        _ => StorageError::Broken,
    }
}

impl Storage for FileStorage {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        self.find().map_err(|error| told("looking for segments", error))
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        self.make(segment, bytes).map_err(|error| told("making a segment", error))
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        let result = self.file(segment).and_then(|file| file.write_all_at(bytes, offset.into()));
        self.unsynced.insert(segment);
        result.map_err(|error| told("writing", error))
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        let result = self.file(segment).and_then(|file| file.read_exact_at(bytes, offset.into()));
        result.map_err(|error| told("reading", error))
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        let mut unsynced = std::mem::take(&mut self.unsynced).into_iter();
        let result = unsynced.try_for_each(|segment| self.file(segment)?.sync_data());
        result.map_err(|error| told("syncing", error))
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::log::{Log, LogError, LogPosition, LogSettings, SEGMENT_BEGIN};

    use super::*;

    const SETTINGS: LogSettings = LogSettings {
        segment_bytes: 1 << 16,
        segments_max: 8,
        durability: amalgam_cluster::log::Durability::Synced,
    };

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("amalgam-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    /// Opens the log of a folder; its records.
    fn open(folder: &Path, cluster: u64) -> Result<(Log<FileStorage>, Vec<Vec<u8>>), LogError> {
        let mut records = Vec::new();
        let storage = FileStorage::open(folder).expect("nobody else has it");
        let (log, _) = Log::open(storage, cluster, SETTINGS, &mut |_, record| {
            records.push(record.to_vec());
        })?;
        Ok((log, records))
    }

    fn read(log: &mut Log<FileStorage>, position: LogPosition) -> Option<Vec<u8>> {
        let mut read = None;
        log.load(vec![(position, ())]).each(|_, (), record| read = record.map(<[u8]>::to_vec));
        read
    }

    #[test]
    fn a_log_in_files_is_read_again_and_recycled() {
        let folder = folder("segments");
        let (mut log, records) = open(&folder, 5).expect("it is new");
        assert!(records.is_empty());
        let mut places = Vec::new();
        let record = |number: u32| [&number.to_le_bytes()[..], &[7; 1_000]].concat();
        for number in 0..200 {
            places.push(log.append(&record(number)).expect("there is room"));
        }
        log.commit().expect("it is synced");
        assert_eq!(read(&mut log, places[150]), Some(record(150)));
        assert!(FileStorage::open(&folder).is_err(), "it is in use");
        drop(log);
        // A creation that was cut off, and somebody else's file.
        std::fs::write(folder.join("segment-000000ff"), [0; 99]).expect("a file");
        std::fs::write(folder.join("notes"), "mine").expect("a file");
        let (mut log, records) = open(&folder, 5).expect("it is there");
        assert_eq!(records, (0..200).map(record).collect::<Vec<_>>());
        let used = log.usage().1;
        let first = places[0];
        places.iter().for_each(|place| log.release(*place));
        let clean = |log: &mut Log<FileStorage>| {
            while let Some(victim) = log.victim() {
                let part = log.load_to_clean(victim, (SEGMENT_BEGIN, u32::MAX)).expect("in use");
                log.clean_part(&part, &mut |_, _| false).expect("it reads");
                log.retire(victim).expect("nothing is live");
            }
        };
        clean(&mut log);
        let moved = log.append(&record(1)).expect("there is room");
        log.commit().expect("it is synced");
        // The newest stays until there is another.
        clean(&mut log);
        assert!(moved != first && log.usage().1 + log.usage().2 == used, "no file was added");
        drop(log);
        assert_eq!(open(&folder, 6).err(), Some(LogError::Foreign(5)));
        assert_eq!(open(&folder, 5).expect("it is there").1, [record(1)]);
        assert_eq!(std::fs::read(folder.join("notes")).expect("a file"), b"mine");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
