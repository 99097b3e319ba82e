//! The machine and the commit that a figure belongs to.

use std::fs;

/// The machine that a figure was measured on.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    /// CPU model, as the system names it; `unknown` where it does not.
    pub cpu: String,
    /// The number of cores that the system has online.
    pub cores: usize,
    /// The machine's memory in bytes.
    pub memory_bytes: u64,
}

/// The commit that this program was built from; `unknown` where it was not built from a clone.
pub fn commit() -> &'static str {
    env!("AMALGAM_COMMIT")
}

impl Machine {
    /// Describes this machine; a fact that the system does not reveal is `unknown` or 0.
    pub fn describe() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = field(&info, "model name").unwrap_or("unknown").to_owned();
        let cores = info.lines().filter(|line| line.starts_with("processor")).count();
        let memory = memory_field("MemTotal");
        Self { cpu, cores, memory_bytes: memory }
    }

    /// The bytes of memory that a program can allocate without making the system swap.
    pub fn available_bytes() -> u64 {
        memory_field("MemAvailable")
    }
}

fn memory_field(name: &str) -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field(&info, name).and_then(|value| value.split_whitespace().next());
    kilobytes.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The value of the first line of the form `name : value` with this name.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 1: 2 GHz\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 1: 2 GHz"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = Machine::describe();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20 && !machine.cpu.is_empty());
        assert!((1..=machine.memory_bytes).contains(&Machine::available_bytes()));
        assert!(!commit().is_empty());
    }
}
