//! The clocks of CPU time and the measures of resident memory.

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

/// CPU time of the calling thread in nanoseconds. The call is a system call and takes about 250 ns.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// CPU time of this process, all its threads, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// CPU time in nanoseconds of all threads that process `pid` has now. The time of threads that have
/// ended is not included.
///
/// # Errors
///
/// If there is no such process or its files in `/proc` cannot be read.
pub fn cpu_of_threads_ns(pid: u32) -> anyhow::Result<u64> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let listed = fs::read_dir(&tasks).with_context(|| format!("process {pid} cannot be found"))?;
    let mut total = 0;
    for task in listed {
        let file = task?.path().join("schedstat");
        // A thread may have ended since the directory was listed.
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let first = text.split_whitespace().next().context("an empty schedstat")?;
        total += first.parse::<u64>().with_context(|| format!("{}: '{text}'", file.display()))?;
    }
    Ok(total)
}

/// The time that one thread has waited for a core, as the scheduler counts it.
#[derive(Debug)]
pub struct RunQueue(fs::File);

impl RunQueue {
    /// Opens the scheduler's count of the calling thread.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn of_this_thread() -> anyhow::Result<Self> {
        Ok(Self(fs::File::open("/proc/thread-self/schedstat").context("time in the run queue")?))
    }

    /// The time in nanoseconds that the thread has waited since it began.
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

/// Resident memory of this process in bytes without the pages of files, so that pages of the
/// program's code that are read meanwhile do not count.
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

/// Resident memory of process `pid` in bytes, the pages of files included.
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
        // Another process is measured, because threads of this one end and leave the sum.
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
