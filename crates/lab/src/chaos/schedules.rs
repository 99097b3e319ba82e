//! The faults, and what ends them.

use std::time::Duration;

use rustix::process::Signal;

use crate::chaos::network::{ETCD_HOST, cut, heal};
use crate::chaos::systems::Cluster;

/// How long a fault lasts: longer than a lease and what follows its end.
const FAULT: Duration = Duration::from_secs(8);

/// How long members are cut off from each other while etcd hears them all: longer than it takes
/// any of the systems to give up a member that only others cannot reach.
const CUT: Duration = Duration::from_secs(16);

/// How long a disk hangs: our nodes give up their leases after 10 s of that.
const HANGING: Duration = Duration::from_secs(16);

/// What happens during a trial.
pub struct Schedule {
    /// Its name on the command line.
    pub name: &'static str,
    /// Members that it hits: the first ones after member 0; all of them if 0 as well.
    pub victims: fn(&Cluster) -> Vec<usize>,
    /// Whether only our systems have what it needs.
    pub is_ours_alone: bool,
    /// The fault and its end.
    pub run: fn(&mut Cluster) -> anyhow::Result<()>,
}

/// The schedule whose disk can be suspended.
pub const DISK_HUNG: &str = "disk-hung";

const fn schedule(
    name: &'static str,
    is_ours_alone: bool,
    victims: fn(&Cluster) -> Vec<usize>,
    run: fn(&mut Cluster) -> anyhow::Result<()>,
) -> Schedule {
    Schedule { name, victims, is_ours_alone, run }
}

/// All schedules.
pub const SCHEDULES: &[Schedule] = &[
    schedule("kill-one", false, one, |cluster| kill(cluster, &[1])),
    schedule("kill-two", false, |_| vec![1, 2], |cluster| kill(cluster, &[1, 2])),
    schedule("kill-all", false, all, |cluster| {
        let all = all(cluster);
        kill(cluster, &all)
    }),
    schedule("stop", false, one, |cluster| {
        cluster.signal(1, Signal::STOP)?;
        std::thread::sleep(FAULT);
        cluster.signal(1, Signal::CONT)
    }),
    schedule("cut-one-way", false, one, |cluster| cut_off(cluster, false)),
    schedule("cut-two-way", false, one, |cluster| cut_off(cluster, true)),
    schedule("etcd-killed", true, none, |cluster| {
        cluster.kill_etcd();
        std::thread::sleep(FAULT);
        cluster.start_etcd()
    }),
    schedule("etcd-stopped", true, none, |cluster| {
        cluster.signal_etcd(Signal::STOP)?;
        std::thread::sleep(FAULT);
        cluster.signal_etcd(Signal::CONT)
    }),
    schedule("cut-etcd", true, one, |cluster| {
        cut(cluster.host(1), ETCD_HOST)?;
        cut(ETCD_HOST, cluster.host(1))?;
        wait_and_heal(FAULT)
    }),
    schedule("cut-etcd-one-way", true, one, |cluster| {
        cut(ETCD_HOST, cluster.host(1))?;
        wait_and_heal(FAULT)
    }),
    schedule(DISK_HUNG, false, one, |cluster| {
        cluster.disk(1).suspend(true)?;
        std::thread::sleep(HANGING);
        cluster.disk(1).suspend(false)
    }),
    schedule("disk-full", false, one, |cluster| {
        cluster.disk(1).fill(true)?;
        std::thread::sleep(FAULT);
        cluster.disk(1).fill(false)
    }),
    schedule("rolling-restart", true, all, |cluster| {
        for place in cluster.places() {
            cluster.drain(place)?;
            cluster.stop(place)?;
            cluster.start_member(place)?;
            cluster.wait_until_served()?;
        }
        Ok(())
    }),
    schedule("join-drain", true, none, |cluster| {
        let late = cluster.places().end;
        cluster.start_member(late)?;
        std::thread::sleep(FAULT);
        cluster.drain(late)?;
        cluster.stop(late)
    }),
    schedule("name-twice", true, one, |cluster| {
        let late = cluster.places().end;
        cluster.start_named(late, "n1")?;
        std::thread::sleep(FAULT);
        cluster.kill(late);
        Ok(())
    }),
];

fn none(_: &Cluster) -> Vec<usize> {
    Vec::new()
}

fn one(_: &Cluster) -> Vec<usize> {
    vec![1]
}

fn all(cluster: &Cluster) -> Vec<usize> {
    cluster.places().collect()
}

fn kill(cluster: &mut Cluster, places: &[usize]) -> anyhow::Result<()> {
    places.iter().for_each(|place| cluster.kill(*place));
    std::thread::sleep(FAULT);
    places.iter().try_for_each(|place| cluster.start_member(*place))
}

/// Cuts member 1 off from the other members; clients and etcd reach it.
fn cut_off(cluster: &Cluster, both_ways: bool) -> anyhow::Result<()> {
    for place in cluster.places().filter(|place| *place != 1) {
        cut(cluster.host(1), cluster.host(place))?;
        if both_ways {
            cut(cluster.host(place), cluster.host(1))?;
        }
    }
    wait_and_heal(CUT)
}

fn wait_and_heal(cut: Duration) -> anyhow::Result<()> {
    std::thread::sleep(cut);
    heal();
    Ok(())
}
