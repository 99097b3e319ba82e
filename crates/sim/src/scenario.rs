//! A scenario: the faults and the size of a run, as a small file.

use serde::{Deserialize, Serialize};

use crate::faults::{Faults, NetworkFaults};

/// A run of a cluster with backups. Fields that a file omits are as in the worst case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Number of nodes, at least one.
    pub nodes: usize,
    /// Simulated seconds with faults.
    pub seconds: u64,
    /// Percentage of messages that get lost.
    pub lost_percent: u64,
    /// Percentage of messages that arrive twice.
    pub twice_percent: u64,
    /// Percentage of messages that are late.
    pub late_percent: u64,
    /// See [`Faults::crashes`].
    pub crashes: bool,
    /// See [`Faults::partitions`].
    pub partitions: bool,
    /// See [`Faults::worst`].
    pub worst: bool,
    /// See [`Faults::power`].
    pub power: bool,
    /// See [`Faults::rot`]. Off by default, since one node fewer would be spared.
    pub rot: bool,
    /// See [`Faults::hangs`].
    pub hangs: bool,
    /// See [`Faults::one_way`].
    pub one_way: bool,
    /// Whether clients run the item workload rather than the chunk workload.
    pub items: bool,
    /// Whether nodes of the item workload evict items, as a cache does. Clients then only set, read
    /// and delete keys.
    pub cache: bool,
    /// Whether the logs of a cache's nodes are so small, and its items so long, that backups forget
    /// items.
    pub full_logs: bool,
    /// Whether clients of the chunk workload also compete for the locks of a few chunks, with
    /// leases of seconds.
    pub locks: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        let Faults { network, crashes, partitions, worst, power, rot, hangs, one_way } =
            Faults::WORST;
        let NetworkFaults { lost_percent, twice_percent, late_percent } = network;
        let (nodes, seconds) = (5, 50);
        Self {
            nodes,
            seconds,
            lost_percent,
            twice_percent,
            late_percent,
            crashes,
            partitions,
            worst,
            power,
            rot,
            hangs,
            one_way,
            items: false,
            cache: false,
            full_logs: false,
            locks: false,
        }
    }
}

impl Scenario {
    /// Parses a scenario.
    ///
    /// # Errors
    ///
    /// A description of what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let percents = [scenario.lost_percent, scenario.twice_percent, scenario.late_percent];
        if !(1..=1_000).contains(&scenario.nodes) || percents.iter().any(|percent| *percent > 100) {
            return Err("1 to 1000 nodes, and 0 to 100 messages of a hundred".to_owned());
        }
        Ok(scenario)
    }

    /// The faults of the scenario.
    pub fn faults(&self) -> Faults {
        let Self { lost_percent, twice_percent, late_percent, .. } = *self;
        let network = NetworkFaults { lost_percent, twice_percent, late_percent };
        let Self { crashes, partitions, worst, power, rot, hangs, one_way, .. } = *self;
        Faults { network, crashes, partitions, worst, power, rot, hangs, one_way }
    }
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&toml::to_string(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_nonsense_is_refused() {
        let scenario = Scenario::parse("nodes = 3\nlost-percent = 20").expect("it is one");
        assert_eq!((scenario.nodes, scenario.lost_percent, scenario.seconds), (3, 20, 50));
        assert_eq!(Scenario::parse(&scenario.to_string()), Ok(scenario));
        for text in ["nodes = 0", "nodes = 5000", "lost-percent = 101", "node = 3", "seconds = -1"]
        {
            assert!(Scenario::parse(text).is_err(), "{text}");
        }
    }
}
