//! The faults that a run injects.

/// Faults of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkFaults {
    /// Percentage of messages that get lost.
    pub lost_percent: u64,
    /// Percentage of messages that arrive twice.
    pub twice_percent: u64,
    /// Percentage of messages that are late, by up to half a second.
    pub late_percent: u64,
}

impl NetworkFaults {
    /// Every message arrives within 10 ms.
    pub const NONE: Self = Self { lost_percent: 0, twice_percent: 0, late_percent: 0 };
    /// All of them, often.
    pub const HEAVY: Self = Self { lost_percent: 5, twice_percent: 5, late_percent: 5 };
}

/// The kinds of faults that a run injects.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Faults of the network.
    pub network: NetworkFaults,
    /// Nodes crash and come back without their memory, but never all holders of a committed edit at
    /// once.
    pub crashes: bool,
    /// Nodes are partitioned from each other, and pause for less than a lease.
    pub partitions: bool,
    /// The worst faults for replication: nodes pause for longer than their lease, even in the
    /// middle of a request; their clocks differ in time and rate; the coordinator is away; disks
    /// lose what was not synced.
    pub worst: bool,
    /// All nodes stop at once, by kill or by power loss, and start again in any order; in half of
    /// the runs more than once in a row. They do not where that would lose acknowledged writes,
    /// since a holder has just died.
    pub power: bool,
    /// Bytes on the disk of one node change, even when another node has just died that it may
    /// replace. No range is left to that node alone, and it restarts with an empty disk.
    pub rot: bool,
    /// Disks hang for up to two leases: they carry out nothing meanwhile, and a process that is
    /// killed takes with it what waited. Often one hangs when all nodes stop.
    pub hangs: bool,
    /// Nodes are cut off in one direction, for up to 16 s, and renew their leases all the same.
    pub one_way: bool,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self {
        network: NetworkFaults::NONE,
        crashes: false,
        partitions: false,
        worst: false,
        power: false,
        rot: false,
        hangs: false,
        one_way: false,
    };
    /// The common faults.
    pub const ALL: Self =
        Self { network: NetworkFaults::HEAVY, crashes: true, partitions: true, ..Self::NONE };
    /// All faults except rot, hanging disks and one-way cuts.
    pub const WORST: Self = Self { worst: true, power: true, ..Self::ALL };
}
