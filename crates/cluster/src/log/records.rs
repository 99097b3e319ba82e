//! The log: appending, replaying and cleaning.

use std::collections::BTreeMap;

use super::format::{self, HEAD_BYTES, Head, PREFIX_BYTES, Scanned, SegmentPart};
use super::loading::LoadedPart;
use super::{Durability, LogError, Storage};

mod loads;

pub use loads::RecordLoads;

/// A segment is worth cleaning below this percentage of live bytes, by [`Log::shortage`].
const CLEAN_BELOW_PERCENT: [u32; 3] = [25, 50, 95];
/// Offset of the first record in a segment.
pub const SEGMENT_BEGIN: u32 = HEAD_BYTES;
/// On open, skip 2^20 sequence numbers: more than a power loss can have rolled back in segment
/// headers while their records survived.
const SEQUENCE_GAP: u64 = 1 << 20;
/// Each incarnation has this many bits of sequence numbers of its own.
const INCARNATION_SHIFT: u32 = 30;

/// Parameters of a [`Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Length of a segment in bytes.
    pub segment_bytes: u32,
    /// The most segments. One is reserved for the cleaner.
    pub segments_max: u32,
    /// Which crashes committed records survive.
    pub durability: Durability,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { segment_bytes: 8 << 20, segments_max: 4_096, durability: Durability::Buffered }
    }
}

/// The position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    pub(super) segment: u32,
    pub(super) offset: u32,
    pub(super) length: u32,
}

impl LogPosition {
    /// The segment's number.
    pub fn segment(self) -> u32 {
        self.segment
    }

    /// Bytes that the record occupies in the log.
    pub fn bytes(self) -> u64 {
        u64::from(PREFIX_BYTES + self.length)
    }
}

/// Old and new position of a record that the cleaner appended again.
pub type Relocation = (LogPosition, LogPosition);

/// What the cleaner did with a part of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanedPart {
    /// The records that were appended again.
    pub moved: Vec<Relocation>,
    /// Where the next part begins; none at the end of the segment, which is then to be passed to
    /// [`Log::retire`]. Where this one began if it is shorter than its first record, or damaged:
    /// more bytes tell which.
    pub next: Option<u32>,
}

/// A stretch that could not be read in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: u32,
    /// Offset at which it begins.
    pub offset: u32,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Number of valid records.
    pub records: u64,
    /// Whether the last write before the crash was torn.
    pub was_torn: bool,
    /// All other damage.
    pub damages: Vec<Damage>,
    /// Whether all segments have the present format or an equivalent one.
    pub is_current: bool,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    sequence: u64,
    /// Offset of the next record.
    end: u32,
    live_bytes: u32,
}

/// Counts the closed segments with fewer than `below_bytes` live bytes, which are worth cleaning.
#[derive(Clone, Copy, Debug)]
struct CleanableCount {
    below_bytes: u64,
    segments: usize,
}

impl CleanableCount {
    fn new(settings: &LogSettings, percent: u32) -> Self {
        let below_bytes = u64::from(settings.segment_bytes) * u64::from(percent) / 100;
        Self { below_bytes, segments: 0 }
    }

    /// The live bytes of a segment changed from `had` to `has`; none before it is closed and after
    /// it is freed.
    fn note(&mut self, had: Option<u32>, has: Option<u32>) {
        let counts = |bytes: Option<u32>| {
            usize::from(bytes.is_some_and(|bytes| u64::from(bytes) < self.below_bytes))
        };
        self.segments = self.segments + counts(has) - counts(had);
    }
}

/// State of the current segment behind its last commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// Nothing, or records appended since.
    Fresh,
    /// Nothing, and [`Log::vouch`] was called once.
    Idle,
    /// A mark that vouches for the commit and was not synced. The next record does not vouch, since
    /// it could not vouch for the mark.
    Vouched,
}

/// A log of records. Not thread-safe: one thread calls it.
#[derive(Debug)]
pub struct Log<S> {
    storage: S,
    cluster: u64,
    settings: LogSettings,
    segments: BTreeMap<u32, Segment>,
    free: Vec<u32>,
    /// Segments whose headers were damaged when the log was opened.
    damaged: Vec<u32>,
    /// The segment that is appended to.
    current: Option<u32>,
    /// The end of the current segment that is not written yet.
    buffer: Vec<u8>,
    tail: Tail,
    next_sequence: u64,
    /// Counts by [`Self::shortage`].
    cleanable: [CleanableCount; 3],
    failed: Option<LogError>,
}

impl<S: Storage> Log<S> {
    /// Opens a log, empty or not, and passes on each record, segment by segment in the order of
    /// use. All records count as live until [`Self::release`].
    ///
    /// # Errors
    ///
    /// [`LogError::Foreign`], [`LogError::Later`] or [`LogError::Storage`]; nothing is changed.
    pub fn open(
        storage: S,
        cluster: u64,
        settings: LogSettings,
        each: &mut dyn FnMut(LogPosition, &[u8]),
    ) -> Result<(Self, Replay), LogError> {
        let mut log = Self {
            storage,
            cluster,
            settings,
            segments: BTreeMap::new(),
            free: Vec::new(),
            damaged: Vec::new(),
            current: None,
            buffer: Vec::new(),
            tail: Tail::Fresh,
            next_sequence: 1,
            cleanable: CLEAN_BELOW_PERCENT.map(|percent| CleanableCount::new(&settings, percent)),
            failed: None,
        };
        let mut replay = Replay { is_current: true, ..Replay::default() };
        let mut used = BTreeMap::new();
        for (segment, bytes) in log.storage.segments()? {
            let mut head = vec![0; HEAD_BYTES.min(bytes) as usize];
            log.storage.read(segment, 0, &mut head)?;
            match format::parse_head(&head, cluster)? {
                Head::Used(sequence, version) => {
                    replay.is_current &= version >= format::CURRENT_SINCE;
                    used.insert(sequence, (segment, bytes, version));
                }
                Head::Free if bytes == settings.segment_bytes => log.free.push(segment),
                Head::Free => {}
                // Its contents cannot be told any more.
                Head::Damaged => {
                    replay.damages.push(Damage { segment, offset: 0 });
                    log.damaged.push(segment);
                }
            }
        }
        if settings.durability == Durability::Synced {
            // An earlier incarnation may have freed them and died before syncing that; a sync
            // covers only what this process wrote.
            for segment in &log.free {
                log.storage.write(*segment, 0, &[0; HEAD_BYTES as usize])?;
            }
        }
        let newest = used.keys().next_back().copied().unwrap_or(0);
        log.next_sequence = newest + SEQUENCE_GAP;
        for (sequence, (segment, bytes, version)) in used {
            let newest = (sequence == newest).then_some(version);
            let (end, live_bytes) =
                log.replay(segment, (sequence, bytes), newest, &mut replay, each)?;
            log.segments.insert(segment, Segment { sequence, end, live_bytes });
            log.update_cleanable(None, Some(live_bytes));
        }
        Ok((log, replay))
    }

    /// Makes sequences from now on greater than those of all earlier incarnations of the writer,
    /// even where no header is left that shows them. Requires: incarnations ascend.
    pub fn begin_incarnation(&mut self, number: u32) {
        self.next_sequence = self.next_sequence.max(u64::from(number) << INCARNATION_SHIFT);
    }

    /// Replays one segment; `newest` is the format version if it is the newest segment.
    fn replay(
        &mut self,
        segment: u32,
        (sequence, bytes): (u64, u32),
        newest: Option<u16>,
        replay: &mut Replay,
        each: &mut dyn FnMut(LogPosition, &[u8]),
    ) -> Result<(u32, u32), LogError> {
        let mut all = vec![0; bytes as usize];
        self.storage.read(segment, 0, &mut all)?;
        let part = SegmentPart::new(&all, 0, sequence);
        let vouching = newest.filter(|version| *version >= format::VOUCHING_SINCE);
        let vouched = vouching.map(|_| part.vouched(HEAD_BYTES));
        // Damage for which nothing vouches was not synced: any part of it may have arrived.
        let is_torn = |offset| match vouched {
            Some(vouched) => offset > vouched,
            None => newest.is_some() && !part.goes_on_behind(offset),
        };
        let (mut end, mut live_bytes) = (HEAD_BYTES, 0);
        for (offset, found) in part.walk(HEAD_BYTES) {
            end = offset;
            match found {
                Scanned::Record(record) => {
                    let length = record.len() as u32;
                    each(LogPosition { segment, offset, length }, record);
                    replay.records += 1;
                    live_bytes += PREFIX_BYTES + length;
                }
                Scanned::Committed | Scanned::Complete => {}
                Scanned::Nothing if is_torn(offset) => {
                    let rest = all.get(offset as usize..).unwrap_or_default();
                    let prefix = &rest[..rest.len().min(PREFIX_BYTES as usize)];
                    replay.was_torn = prefix.iter().any(|byte| *byte != 0);
                    break;
                }
                Scanned::Nothing => replay.damages.push(Damage { segment, offset }),
            }
        }
        if newest.is_some() && end + PREFIX_BYTES <= bytes {
            // Nothing is appended here again, so mark it complete; otherwise the next replay would
            // take its end for damage. An existing mark may not have been synced; it goes on
            // vouching for what is before it.
            let mut mark = Vec::new();
            format::encode_complete(sequence, end, vouched == Some(end), &mut mark);
            self.storage.write(segment, end, &mark)?;
        }
        Ok((end, live_bytes))
    }

    /// Appends a record. It is durable once [`Self::commit`] has returned.
    ///
    /// # Errors
    ///
    /// [`LogError::Length`], [`LogError::Full`], or the storage's error, now or earlier.
    pub fn append(&mut self, record: &[u8]) -> Result<LogPosition, LogError> {
        self.append_with(record, self.settings.segments_max.saturating_sub(1))
    }

    /// As [`Self::append`], but may use the segment reserved for the cleaner: for short records
    /// that must not fail.
    ///
    /// # Errors
    ///
    /// As [`Self::append`].
    pub fn append_reserved(&mut self, record: &[u8]) -> Result<LogPosition, LogError> {
        self.append_with(record, self.settings.segments_max)
    }

    fn append_with(&mut self, record: &[u8], segments_max: u32) -> Result<LogPosition, LogError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let room = self.settings.segment_bytes.saturating_sub(HEAD_BYTES + 2 * PREFIX_BYTES);
        let room = room.min(format::COMPLETE - 1);
        let length = u32::try_from(record.len()).map_err(|_| LogError::Length)?;
        if length == 0 || length > room {
            return Err(LogError::Length);
        }
        let fits = |segment: &Segment| {
            segment.end + length + 2 * PREFIX_BYTES <= self.settings.segment_bytes
        };
        let current = match self.current {
            Some(current) if self.segments.get(&current).is_some_and(fits) => current,
            _ => self.begin_segment(segments_max)?,
        };
        let vouches = self.may_vouch();
        self.tail = Tail::Fresh;
        let segment = self.segments.get_mut(&current).expect("it was begun");
        let position = LogPosition { segment: current, offset: segment.end, length };
        format::encode(segment.sequence, segment.end, record, vouches, &mut self.buffer);
        segment.end += PREFIX_BYTES + length;
        segment.live_bytes += PREFIX_BYTES + length;
        Ok(position)
    }

    /// Whether everything appended to the current segment is certainly committed.
    fn may_vouch(&self) -> bool {
        self.buffer.is_empty() && self.tail != Tail::Vouched
    }

    fn begin_segment(&mut self, segments_max: u32) -> Result<u32, LogError> {
        if self.segments.len() >= segments_max as usize {
            return Err(LogError::Full);
        }
        let full = self.current.take();
        if let Some(full) = full {
            let segment = &self.segments[&full];
            let (sequence, end, live_bytes) = (segment.sequence, segment.end, segment.live_bytes);
            self.update_cleanable(None, Some(live_bytes));
            format::encode_complete(sequence, end, false, &mut self.buffer);
            self.write_buffer(full, end + PREFIX_BYTES)?;
        }
        // Otherwise a later segment might survive a power loss without this one's end, or without
        // the release of others.
        self.sync()?;
        let next = match self.free.pop() {
            Some(next) => next,
            None => {
                let next = self.segments.keys().next_back().map_or(0, |last| last + 1);
                self.storage.create(next, self.settings.segment_bytes).map_err(|error| {
                    // Nothing was written, so the contents are unchanged.
                    match error {
                        super::StorageError::Full => LogError::Full,
                        error => LogError::Storage(error),
                    }
                })?;
                next
            }
        };
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.buffer.extend_from_slice(&format::head(self.cluster, sequence));
        self.segments.insert(next, Segment { sequence, end: HEAD_BYTES, live_bytes: 0 });
        (self.current, self.tail) = (Some(next), Tail::Fresh);
        if full.is_none() {
            // First segment of an incarnation: make its sequence durable, so that whatever is lost
            // no later incarnation reuses it, for which these records would then count.
            self.write_buffer(next, HEAD_BYTES)?;
            self.storage.sync().map_err(|error| self.fail(error.into()))?;
        }
        Ok(next)
    }

    /// Makes everything appended durable: one write, and one sync in [`Durability::Synced`]. They
    /// are carried out once [`Self::is_written`] returns true.
    ///
    /// # Errors
    ///
    /// The storage's error. Then it is unknown what is durable, and nothing is appended any more.
    pub fn commit(&mut self) -> Result<(), LogError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let Some(current) = self.current.filter(|_| !self.buffer.is_empty()) else { return Ok(()) };
        let end = self.segments[&current].end;
        self.write_buffer(current, end)?;
        self.sync()
    }

    /// Whether the storage has carried out everything, all commits among it.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub fn is_written(&mut self) -> Result<bool, LogError> {
        match self.failed {
            Some(failed) => Err(failed),
            None => self.storage.is_idle().map_err(|error| self.fail(error.into())),
        }
    }

    /// Bytes that were appended and are not written yet.
    pub fn unwritten_bytes(&self) -> usize {
        self.buffer.len() + self.storage.unwritten_bytes()
    }

    /// Writes a mark that vouches for the last commit, if nothing was appended since the previous
    /// call. Normally the next record vouches; until something does, damage in the last commit is
    /// taken for a torn write.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub fn vouch(&mut self) -> Result<(), LogError> {
        let may_vouch = self.failed.is_none() && self.may_vouch();
        let Some(current) = self.current.filter(|_| may_vouch) else { return Ok(()) };
        if std::mem::replace(&mut self.tail, Tail::Idle) == Tail::Fresh {
            return Ok(());
        }
        self.tail = Tail::Vouched;
        let segment = self.segments.get_mut(&current).expect("it was begun");
        let (sequence, offset, mut mark) = (segment.sequence, segment.end, Vec::new());
        if offset + 2 * PREFIX_BYTES <= self.settings.segment_bytes {
            format::encode_committed(sequence, offset, &mut mark);
            segment.end += PREFIX_BYTES;
        } else {
            // No further record fits: the segment is complete.
            format::encode_complete(sequence, offset, true, &mut mark);
        }
        self.storage.write(current, offset, &mark).map_err(|error| self.fail(error.into()))
    }

    fn write_buffer(&mut self, segment: u32, end: u32) -> Result<(), LogError> {
        let from = end - self.buffer.len() as u32;
        let written = self.storage.write(segment, from, &self.buffer);
        self.buffer.clear();
        written.map_err(|error| self.fail(error.into()))
    }

    fn sync(&mut self) -> Result<(), LogError> {
        if self.settings.durability == Durability::Buffered {
            return Ok(());
        }
        self.storage.sync().map_err(|error| self.fail(error.into()))
    }

    fn fail(&mut self, error: LogError) -> LogError {
        self.failed = Some(error);
        error
    }

    /// Marks a record as no longer needed.
    pub fn release(&mut self, position: LogPosition) {
        let Some(segment) = self.segments.get_mut(&position.segment) else { return };
        let had = segment.live_bytes;
        segment.live_bytes = had.saturating_sub(PREFIX_BYTES + position.length);
        let has = segment.live_bytes;
        if self.current != Some(position.segment) {
            self.update_cleanable(Some(had), Some(has));
        }
    }

    /// Whether segments run short: then any segment that is not full is worth cleaning.
    pub fn is_short(&self) -> bool {
        self.segments.len() + 2 >= self.settings.segments_max as usize
    }

    /// Whether the last segment that records other than reserved ones may use is in use.
    pub fn is_at_end(&self) -> bool {
        self.segments.len() + 1 >= self.settings.segments_max as usize
    }

    /// How short segments are: 0 while a quarter or more are free, 2 if they are short. To free a
    /// byte of a segment of which a share is live takes the more work the larger that share is, so
    /// the more are free, the emptier a segment has to be.
    fn shortage(&self) -> usize {
        let is_roomy = self.segments.len() * 4 <= self.settings.segments_max as usize * 3;
        if self.is_short() { 2 } else { usize::from(!is_roomy) }
    }

    /// The segment to clean next, if one is worth it: the one with the fewest live bytes.
    pub fn victim(&self) -> Option<u32> {
        if self.cleanable[self.shortage()].segments == 0 {
            return None;
        }
        // The newest segment is never freed: later sequences are counted from its own.
        let newest = self.newest();
        let others = self.segments.iter().filter(|(_, segment)| segment.sequence != newest);
        others.min_by_key(|(_, segment)| segment.live_bytes).map(|(number, _)| *number)
    }

    /// The segment with the oldest records, if segments run short and cleaning would free little:
    /// even the emptiest has more than three quarters live bytes. `is_futile` stands for the
    /// latter where the caller knows better.
    pub fn oldest_if_dense(&self, is_futile: bool) -> Option<u32> {
        let newest = self.newest();
        let closed = || self.segments.iter().filter(|(_, segment)| segment.sequence != newest);
        let dense_bytes = u64::from(self.settings.segment_bytes) * 3 / 4;
        let is_dense = || closed().all(|(_, segment)| u64::from(segment.live_bytes) > dense_bytes);
        if !self.is_short() || !(is_futile || is_dense()) {
            return None;
        }
        closed().min_by_key(|(_, segment)| segment.sequence).map(|(number, _)| *number)
    }

    /// Asks for about N bytes of a closed segment from `from` on ([`SEGMENT_BEGIN`] at first), to
    /// clean them; none if the segment is not in use.
    pub fn load_to_clean(&mut self, number: u32, (from, bytes): (u32, u32)) -> Option<LoadedPart> {
        let end = self.segments.get(&number)?.end;
        self.load_part((number, from.min(end), from.saturating_add(bytes.max(PREFIX_BYTES))))
    }

    /// Appends again the live records of a part that is loaded.
    ///
    /// # Errors
    ///
    /// As [`Self::append`], and the storage's if it could not read the part; the old records are
    /// still there.
    pub fn clean_part(
        &mut self,
        part: &LoadedPart,
        is_live: &mut dyn FnMut(LogPosition, &[u8]) -> bool,
    ) -> Result<CleanedPart, LogError> {
        let (number, from, sequence) = (part.segment, part.from, part.sequence);
        let is_same = |segment: &&Segment| segment.sequence == sequence;
        let segment = self.segments.get(&number).filter(is_same);
        let Some((end, bytes)) = segment.map(|segment| segment.end).zip(part.bytes()) else {
            return Ok(CleanedPart::default());
        };
        let (bytes, mut live) = (bytes?, Vec::new());
        let to = from + bytes.len() as u32;
        let found = SegmentPart::new(bytes, from, sequence);
        let mut offset = from;
        let next = loop {
            match found.find(offset) {
                Scanned::Record(record) => {
                    let length = record.len() as u32;
                    let position = LogPosition { segment: number, offset, length };
                    if is_live(position, record) {
                        live.push(position);
                    }
                    offset += PREFIX_BYTES + length;
                }
                Scanned::Committed => offset += PREFIX_BYTES,
                Scanned::Complete => break None,
                Scanned::Nothing if to < end && found.is_cut(offset, end) => {
                    break Some(offset);
                }
                // Skip the damaged stretch.
                Scanned::Nothing => match found.next_whole(offset) {
                    Some(next) => offset = next,
                    None => break (to < end).then_some(offset),
                },
            }
        };
        let mut moved = Vec::with_capacity(live.len());
        for position in live {
            let begin = (position.offset - from + PREFIX_BYTES) as usize;
            let record = &bytes[begin..begin + position.length as usize];
            moved.push((position, self.append_reserved(record)?));
            self.release(position);
        }
        Ok(CleanedPart { moved, next })
    }

    /// Frees a segment whose live records were all appended again.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`]; the segment is unchanged.
    pub fn retire(&mut self, number: u32) -> Result<(), LogError> {
        self.commit()?;
        // Sync earlier releases too: of two freed segments, the one with the older records must not
        // come back alone.
        self.sync()?;
        self.free_segment(number)
    }

    /// Frees all segments except the current one, which is made durable first; begins one if there
    /// is none.
    ///
    /// # Errors
    ///
    /// As [`Self::append`].
    pub fn retire_all(&mut self) -> Result<(), LogError> {
        if self.current.is_none() {
            self.begin_segment(self.settings.segments_max)?;
        }
        self.commit()?;
        self.sync()?;
        let current = self.current;
        let closed = self.segments.keys().copied().filter(|number| Some(*number) != current);
        for number in closed.collect::<Vec<_>>() {
            self.free_segment(number)?;
        }
        // Otherwise the next replay would find the damage again.
        for number in std::mem::take(&mut self.damaged) {
            if !self.segments.contains_key(&number) {
                self.storage
                    .write(number, 0, &[0; HEAD_BYTES as usize])
                    .map_err(|error| self.fail(error.into()))?;
            }
        }
        self.sync()
    }

    fn free_segment(&mut self, number: u32) -> Result<(), LogError> {
        // Otherwise the next replay would find released records again.
        self.storage
            .write(number, 0, &[0; HEAD_BYTES as usize])
            .map_err(|error| self.fail(error.into()))?;
        if let Some(segment) = self.segments.remove(&number) {
            self.update_cleanable(Some(segment.live_bytes), None);
            self.free.push(number);
        }
        Ok(())
    }

    fn update_cleanable(&mut self, had: Option<u32>, has: Option<u32>) {
        self.cleanable.iter_mut().for_each(|cleanable| cleanable.note(had, has));
    }

    /// The sequence of the oldest segment other than `but`: records appended before it are gone
    /// from the log.
    pub fn oldest(&self, but: u32) -> u64 {
        let others = self.segments.iter().filter(|(number, _)| **number != but);
        others.map(|(_, segment)| segment.sequence).min().unwrap_or(self.next_sequence)
    }

    /// The sequence of the newest segment.
    pub fn newest(&self) -> u64 {
        self.segments.values().map(|segment| segment.sequence).max().unwrap_or(0)
    }

    /// The sequence of the segment in which a record lies.
    pub fn sequence(&self, position: LogPosition) -> u64 {
        self.segments.get(&position.segment).map_or(0, |segment| segment.sequence)
    }

    /// Live bytes, and the numbers of segments in use and free.
    pub fn usage(&self) -> (u64, usize, usize) {
        let live = self.segments.values().map(|segment| u64::from(segment.live_bytes)).sum();
        (live, self.segments.len(), self.free.len())
    }

    /// The storage.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// The storage, without the log.
    pub fn into_storage(self) -> S {
        self.storage
    }
}
