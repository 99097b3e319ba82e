//! CPU clocks and resident memory.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // CPU clocks start at zero and do not run backwards.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of the calling thread in nanoseconds. A system call: about a quarter of a microsecond.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// CPU time of this process, all its threads, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// CPU time of all the threads that process `pid` has now, in nanoseconds.
///
/// # Errors
///
/// If there is no such process or it cannot be looked at.
pub fn cpu_of_threads_ns(pid: u32) -> anyhow::Result<u64> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let listed =
        fs::read_dir(&tasks).with_context(|| format!("no process {pid} to account for"))?;
    let mut total = 0;
    for task in listed {
        let file = task?.path().join("schedstat");
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let first = text.split_whitespace().next().context("an empty schedstat")?;
        total += first.parse::<u64>().with_context(|| format!("{}: '{text}'", file.display()))?;
    }
    Ok(total)
}

/// How long the thread that opened it waited for a core, as the scheduler counts.
#[derive(Debug)]
pub struct RunQueue(fs::File);

impl RunQueue {
    /// Of the calling thread.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn of_this_thread() -> anyhow::Result<Self> {
        Ok(Self(fs::File::open("/proc/thread-self/schedstat").context("time in the run queue")?))
    }

    /// All its waiting so far, in nanoseconds.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn waited_ns(&self) -> anyhow::Result<u64> {
        let mut text = [0; 64];
        let count = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..count])?;
        text.split_whitespace().nth(1).context("schedstat is short")?.parse().context("schedstat")
    }
}

/// Memory of this process that is resident, in bytes, without pages of files: what it allocated,
/// and not what of its own code was read meanwhile.
///
/// # Errors
///
/// If the system does not tell.
pub fn anonymous_bytes() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/self/status").context("resident memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    let kibibytes = line.split_whitespace().next().context("RssAnon is short")?;
    Ok(kibibytes.parse::<u64>()? << 10)
}

/// Memory of a process that is resident, in bytes.
///
/// # Errors
///
/// If the system does not tell.
pub fn resident_bytes_of(pid: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).context("resident memory")?;
    let pages = text.split_whitespace().nth(1).context("statm is short")?;
    Ok(pages.parse::<u64>()? * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burn() -> u64 {
        (0..3_000_000u64).fold(1, |sum, x| std::hint::black_box(sum ^ x.wrapping_mul(sum | 1)))
    }

    #[test]
    fn clocks_count_work_and_only_work() {
        let (before, started) = (thread_cpu_ns(), std::time::Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let slept = thread_cpu_ns() - before;
        assert!(u128::from(slept) < started.elapsed().as_nanos(), "sleeping is no work");
        let (thread, process) = (thread_cpu_ns(), process_cpu_ns());
        burn();
        assert!(thread_cpu_ns() > thread && process_cpu_ns() > process);
    }

    #[test]
    fn a_process_is_accounted_for_by_its_number() {
        // Another process: in this one threads end, and what they used leaves the sum.
        let mut shell = std::process::Command::new("sh");
        let mut child = shell.args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let cpu = || cpu_of_threads_ns(child.id()).expect("it runs");
        let before = cpu();
        let has_worked = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            cpu() > before
        });
        child.kill().expect("it runs");
        child.wait().expect("a child");
        assert!(has_worked);
        assert!(cpu_of_threads_ns(u32::MAX).is_err());
    }

    #[test]
    fn resident_memory_follows_what_is_touched() {
        let before = anonymous_bytes().expect("told");
        let touched = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = anonymous_bytes().expect("told");
        assert!(after >= before + (24 << 20), "{before} then {after}, {}", touched.len());
    }
}
