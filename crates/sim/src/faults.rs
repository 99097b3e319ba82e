//! Which faults a run injects.

/// How bad the network is.
#[derive(Clone, Copy, Debug)]
pub struct NetworkFaults {
    /// Messages of a hundred that get lost.
    pub lost_percent: u64,
    /// Messages of a hundred that arrive twice.
    pub twice_percent: u64,
    /// Messages of a hundred that are late by up to half a second.
    pub late_percent: u64,
}

impl NetworkFaults {
    /// Everything arrives within 10 ms.
    pub const NONE: Self = Self { lost_percent: 0, twice_percent: 0, late_percent: 0 };
    /// Everything happens.
    pub const HEAVY: Self = Self { lost_percent: 5, twice_percent: 5, late_percent: 5 };
}

/// What happens to the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// What happens to messages.
    pub network: NetworkFaults,
    /// Nodes crash and come back without their memory; never so many at once that all who hold a
    /// committed edit are gone.
    pub crashes: bool,
    /// Nodes are cut off from each other, and nodes stand still.
    pub partitions: bool,
    /// What is worst for who has backups: nodes stand still for longer than their lease, also in
    /// the middle of a request; their clocks differ in time and pace; the coordinator is away;
    /// disks lose what was not synced.
    pub worst: bool,
    /// All nodes end at once, as processes or because the power is gone, and start again in any
    /// order, in half of the runs more than once in a row. Where what was acknowledged would be
    /// lost by that, as whoever kept it has just died, they do not.
    pub power: bool,
    /// Bytes on the disk of one node change by themselves, also when somebody has just died whose
    /// place it may take. No range is left to that node alone, and it starts without that disk.
    pub rot: bool,
}

impl Faults {
    /// Nothing happens.
    pub const NONE: Self = Self {
        network: NetworkFaults::NONE,
        crashes: false,
        partitions: false,
        worst: false,
        power: false,
        rot: false,
    };
    /// Everything happens.
    pub const ALL: Self =
        Self { network: NetworkFaults::HEAVY, crashes: true, partitions: true, ..Self::NONE };
    /// And the worst.
    pub const WORST: Self = Self { worst: true, power: true, ..Self::ALL };
}
