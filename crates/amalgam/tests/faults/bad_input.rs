//! Disks that are full, read-only or damaged, logs of others, and clocks that jump: who cannot keep
//! what it would have to promise says so, and nothing that was acknowledged is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use amalgam_node::cluster::chunks::ChunkError;
use amalgam_node::cluster::ids::ChunkId;
use amalgam_node::{ClusterClient, STATE_FILE};

use super::spaces::{Node, eventually, run};
use super::{NODES, Trial, connect};

/// Of chunks that fill disks.
const LARGE_BYTES: usize = 256 << 10;
/// Of the log.
const SEGMENT_BYTES: usize = 8 << 20;
/// Far more of them than the segments take that a disk has already, and less than a memory.
const LARGE_MAX: usize = 640;
/// Chunks that are damaged where they are kept.
const PATTERNS: u8 = 20;
const YEAR_SECONDS: i64 = 365 * 86_400;
const REFUSES: &str = "the backup log failed";

/// What a chunk holds that is told apart in a file, by the time at which it was made.
fn pattern(made: u64, number: u8) -> Vec<u8> {
    let text = format!("chunk {number:3} of {made:10}, which lies still; ");
    text.repeat(10).into_bytes()
}

/// The files of the log on a disk, and what they hold.
fn contents(disk: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(disk).expect("it is there");
    let read = |file: std::io::Result<std::fs::DirEntry>| -> Option<(PathBuf, Vec<u8>)> {
        let path = file.expect("a file").path();
        // Written anew, by renaming, with each change of the cluster.
        let is_state = path.file_name()?.to_str()?.starts_with(STATE_FILE);
        let bytes = (!is_state).then(|| std::fs::read(&path).expect("it can be read"))?;
        Some((path, bytes))
    };
    files.filter_map(read).collect()
}

/// Where patterns lie on a disk, whole.
fn occurrences(disk: &Path, made: u64) -> Vec<(u8, PathBuf, usize)> {
    let patterns: Vec<Vec<u8>> = (0..PATTERNS).map(|number| pattern(made, number)).collect();
    let begin = &patterns[0][..6];
    let mut found = Vec::new();
    for (path, bytes) in contents(disk) {
        let mut at = 0;
        while let Some(next) = bytes[at..].windows(begin.len()).position(|part| part == begin) {
            at += next;
            let is_there = |pattern: &Vec<u8>| bytes[at..].starts_with(pattern);
            match patterns.iter().position(is_there) {
                Some(number) => {
                    found.push((number as u8, path.clone(), at));
                    at += patterns[number].len();
                }
                None => at += begin.len(),
            }
        }
    }
    found
}

/// Turns a bit over, as a disk might, whoever uses the file meanwhile.
fn flip(path: &Path, at: usize) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).expect("it can be read");
    file.write_all_at(&[byte[0] ^ 0x40], at as u64).expect("it can be written");
}

impl Trial {
    /// Those who keep what a node stores now, by owner; of whom cannot say it, nobody.
    fn backups(&self) -> [Vec<usize>; NODES] {
        std::array::from_fn(|owner| {
            let mut client = connect(&self.nodes[owner].address());
            let Ok(id) = client.create(b"a probe") else { return Vec::new() };
            let keepers = self.keepers(&mut client, id);
            client.delete(id).expect("it is there");
            keepers
        })
    }

    /// Those who keep a chunk of the node that is asked; nobody if it cannot say it.
    fn keepers(&self, owner: &mut ClusterClient, id: ChunkId) -> Vec<usize> {
        let places = (0..NODES).map(|place| (self.node_id(place), place));
        let places: BTreeMap<_, _> = places.collect();
        let held = owner.holding(id).ok().flatten();
        let copies = held.into_iter().flat_map(|holding| holding.replicas);
        copies.filter_map(|(peer, _)| places.get(&peer.node).copied()).collect()
    }

    /// An owner that is not the home, and one of those who keep its chunks now, nor is that.
    fn owner_and_backup(&self) -> (usize, usize) {
        let mut found = None;
        eventually("a node keeps chunks of another", || {
            let backups = self.backups();
            found = (1..NODES).find_map(|owner| {
                backups[owner].iter().find(|backup| **backup > 0).map(|backup| (owner, *backup))
            });
            found.is_some()
        });
        found.expect("it was found")
    }

    /// One of some, and the owners whose chunks it keeps now.
    fn keeper_of(&mut self, is_one: impl Fn(&Self, usize) -> bool) -> (usize, Vec<usize>) {
        for restarted in (1..NODES).cycle() {
            let ones: Vec<usize> = (1..NODES).filter(|place| is_one(self, *place)).collect();
            let backups = self.backups();
            let owners = |one| (0..NODES).filter(|owner| backups[*owner].contains(&one)).collect();
            let with_owners = ones.iter().map(|one| (*one, owners(*one)));
            let most = with_owners.max_by_key(|(_, owners): &(_, Vec<usize>)| owners.len());
            if let Some((one, owners)) = most.filter(|(_, owners)| !owners.is_empty()) {
                return (one, owners);
            }
            // All replica sets were completed while it was away. A node that restarts without
            // contents draws a new set.
            if !ones.contains(&restarted) {
                self.kill(&[restarted]);
                self.restart(&[restarted]);
                self.is_whole();
            }
        }
        unreachable!("the cycle has no end")
    }

    /// Has owners store large chunks until something is so.
    fn store_until(&mut self, owners: &[usize], is_so: impl Fn(&Self) -> bool) {
        let owners = owners.iter().map(|owner| connect(&self.nodes[*owner].address()));
        let mut owners: Vec<_> = owners.collect();
        let mut stored = Vec::new();
        eventually("a disk is full", || {
            for owner in &mut owners {
                if stored.len() < LARGE_MAX {
                    stored.extend(owner.create(&vec![stored.len() as u8; LARGE_BYTES]).ok());
                }
            }
            is_so(self)
        });
        self.stored = stored;
    }

    /// Reads what [`Self::store_until`] stored, and removes it.
    fn read_and_remove(&mut self) {
        let mut client = connect(&self.home());
        for (number, id) in self.stored.drain(..).enumerate() {
            eventually("a large chunk can be read", || match client.get(id) {
                Ok(value) => {
                    assert!(value == vec![number as u8; LARGE_BYTES], "{id} is another");
                    true
                }
                Err(error) => {
                    assert_ne!(error, ChunkError::NoChunk, "{id} is lost");
                    false
                }
            });
            eventually("a large chunk is removed", || match client.delete(id) {
                // It may have been, and the answer got lost.
                Ok(()) | Err(ChunkError::NoChunk) => true,
                Err(error) => {
                    println!("    {id} is not removed yet: {error}");
                    false
                }
            });
        }
    }

    /// Whether a node says something, from a place in what it logged on.
    fn says(&self, place: usize, from: usize, mention: &str) -> bool {
        self.nodes[place].log()[from..].contains(mention)
    }

    /// A node that only stores chunks refuses further writes and continues to serve.
    fn refuses(
        &mut self,
        name: &str,
        reason: &str,
        spoil: impl FnOnce(&Node),
        mend: impl FnOnce(&Node),
    ) {
        let (victim, owners) = self.keeper_of(|t, place| !t.super_peers().contains(&place));
        let from = self.nodes[victim].log().len();
        self.scene(
            name,
            |t| {
                spoil(&t.nodes[victim]);
                t.store_until(&owners, |t| t.says(victim, from, REFUSES));
                assert!(t.says(victim, from, reason), "{}", t.nodes[victim].log());
                // What a segment took that was not completed is given back.
                let disk = contents(&t.nodes[victim].disk());
                let is_whole = |bytes: &&Vec<u8>| bytes.is_empty() || bytes.len() == SEGMENT_BYTES;
                assert!(disk.values().all(|bytes| is_whole(&bytes)), "a part of a segment");
                Vec::new()
            },
            |t| {
                // Others keep what it owns, and it serves.
                let mut client = connect(&t.nodes[victim].address());
                let id = client.create(b"a value").expect("it serves");
                assert_eq!(client.get(id).as_deref(), Ok(&b"a value"[..]));
                t.read_and_remove();
                t.nodes[victim].kill();
                mend(&t.nodes[victim]);
                t.nodes[victim].start();
            },
        );
    }

    /// A super peer that leads cannot persist what it would promise, and stops.
    fn full_disk_of_a_leader(&mut self) {
        let (victim, owners) = self.keeper_of(|t, place| t.super_peers().contains(&place));
        let from = self.nodes[victim].log().len();
        self.scene(
            "a full disk of a super peer",
            |t| {
                t.nodes[victim].fill_disk(true);
                let stops = "the node stops: it cannot keep metadata";
                t.store_until(&owners, |t| t.says(victim, from, stops));
                assert!(t.says(victim, from, "No space left"), "{}", t.nodes[victim].log());
                vec![victim]
            },
            |t| {
                t.nodes[victim].ends();
                t.read_and_remove();
                t.nodes[victim].fill_disk(false);
                t.nodes[victim].start();
            },
        );
    }

    /// Has a node store a chunk of each pattern.
    fn store_patterns(&self, owner: usize, made: u64) -> Vec<ChunkId> {
        let mut client = connect(&self.nodes[owner].address());
        let create = |number| client.create(&pattern(made, number)).expect("it serves");
        (0..PATTERNS).map(create).collect()
    }

    /// Chunks hold their patterns.
    fn holds(&self, ids: &[ChunkId], made: u64) {
        let mut client = connect(&self.home());
        for (number, id) in (0..PATTERNS).zip(ids) {
            eventually("what was damaged is there", || match client.get(*id) {
                Ok(value) => {
                    assert!(value == pattern(made, number), "{id} is another");
                    true
                }
                Err(error) => {
                    assert_ne!(error, ChunkError::NoChunk, "{id} is lost");
                    false
                }
            });
        }
    }

    /// What a node keeps is damaged while it runs: it finds out, and gets it again.
    fn damaged_while_it_runs(&mut self) {
        let (owner, victim) = self.owner_and_backup();
        let made = self.acknowledged;
        let ids = self.store_patterns(owner, made);
        let (disk, from) = (self.nodes[victim].disk(), self.nodes[victim].log().len());
        self.scene(
            "a segment damaged while it is used",
            |t| {
                let there = occurrences(&disk, made);
                let is_damaged = |number: u8| number.is_multiple_of(2);
                for (_, path, at) in there.iter().filter(|(number, ..)| is_damaged(*number)) {
                    flip(path, at + 100);
                }
                assert!(there.iter().any(|(number, ..)| is_damaged(*number)), "it is kept there");
                eventually("it is found, and kept anew", || {
                    let whole: BTreeSet<u8> =
                        occurrences(&disk, made).into_iter().map(|(number, ..)| number).collect();
                    t.says(victim, from, "the backup log is damaged: these chunks are fetched")
                        && whole.len() == usize::from(PATTERNS)
                });
                // From now on it is up to the copies.
                t.kill(&[owner])
            },
            |t| {
                t.holds(&ids, made);
                t.restart(&[owner]);
            },
        );
    }

    /// An owner dies, and who takes its place cannot read what it kept: it fetches it from others.
    fn damaged_as_the_owner_dies(&mut self) {
        let (owner, _) = self.owner_and_backup();
        let made = self.acknowledged;
        let ids = self.store_patterns(owner, made);
        self.scene(
            "a segment damaged as its owner dies",
            |t| {
                let mut client = connect(&t.nodes[owner].address());
                let heirs: Vec<_> = ids.iter().map(|id| t.keepers(&mut client, *id)[0]).collect();
                let disks: Vec<PathBuf> = t.nodes.iter().map(Node::disk).collect();
                let there: Vec<_> = disks.iter().map(|disk| occurrences(disk, made)).collect();
                let killed = t.kill(&[owner]);
                for (number, heir) in (0..PATTERNS).zip(&heirs) {
                    let copies = there[*heir].iter().filter(|(one, ..)| *one == number);
                    copies.for_each(|(_, path, at)| flip(path, at + 100));
                }
                killed
            },
            |t| {
                t.holds(&ids, made);
                t.restart(&[owner]);
            },
        );
    }

    /// The same while it does not run: nothing in the log counts, and others have it.
    fn damaged_while_it_is_stopped(&mut self) {
        let (owner, victim) = self.owner_and_backup();
        let made = self.acknowledged;
        let ids = self.store_patterns(owner, made);
        let from = self.nodes[victim].log().len();
        self.scene(
            "a segment damaged in the middle",
            |t| t.kill(&[victim]),
            |t| {
                let there = occurrences(&t.nodes[victim].disk(), made);
                let (_, path, at) = there.get(there.len() / 2).expect("it is kept there");
                flip(path, at + 100);
                t.restart(&[victim]);
            },
        );
        let log = self.nodes[victim].log();
        let is_complaint = |line: &str| line.contains("the backup log is damaged segment=");
        let complaint = log[from..].lines().find(|line| is_complaint(line));
        let complaint = complaint.unwrap_or_else(|| panic!("it says nothing: {log}"));
        assert!(complaint.contains("offset="), "{complaint}");
        assert!(self.says(victim, from, "the backup log is not authoritative"), "{log}");
        self.holds(&ids, made);
    }

    /// Nodes' clocks differ by years, and go back and forth from one incarnation to the next.
    fn clocks_jump(&mut self) {
        let begin = |t: &mut Self, victim: usize, seconds: i64| {
            t.nodes[victim].set_clocks(seconds);
            t.restart(&[victim]);
        };
        self.scene("a clock a year ahead", |t| t.kill(&[4]), |t| begin(t, 4, YEAR_SECONDS));
        if !self.nodes[4].has_clocks() {
            println!("    skipped: clocks that jump, as this system has no time namespaces");
            self.nodes.iter_mut().for_each(Node::reset_clocks);
            return;
        }
        self.scene("clocks a year apart", |t| t.kill(&[3]), |t| begin(t, 3, 10 * YEAR_SECONDS));
        self.scene(
            "clocks that jump back",
            |t| t.kill(&[3, 4]),
            |t| {
                t.nodes.iter_mut().for_each(Node::reset_clocks);
                t.restart(&[3, 4]);
            },
        );
    }

    /// A node that was never there, and whose disk is as it should not be, does not join.
    fn refused_starts(&self) {
        let node = Node::new(NODES, self.folder.clone());
        let disk = node.disk();
        run(&format!("mount -o remount,size=1m {}", disk.display()));
        let text = node.complaint("default", "n9");
        assert!(text.contains("No space left") && text.contains("there is no room"), "{text}");
        assert!(text.contains(&disk.display().to_string()), "{text}");
        run(&format!("mount -o remount,ro {}", disk.display()));
        let text = node.complaint("default", "n9");
        assert!(text.contains("Read-only") && text.contains(&disk.display().to_string()), "{text}");
        run(&format!("mount -o remount,rw,size=1g {}", disk.display()));
        // What another node wrote while it runs; its folder itself is in use.
        for (path, bytes) in contents(&self.nodes[2].disk()) {
            let name = path.file_name().expect("a name");
            std::fs::write(disk.join(name), bytes).expect("there is room");
        }
        let before = contents(&disk);
        let text = node.complaint("another", "n9");
        assert!(text.contains("the log belongs to cluster"), "{text}");
        assert!(contents(&disk) == before, "it is not touched");
        let text = node.complaint("default", "n9");
        assert!(text.contains("the log belongs to node"), "{text}");
        // Nobody counts on who did not start.
        eventually("only those who serve are members", || {
            connect(&self.home()).status().is_ok_and(|status| status.members.len() == NODES)
        });
        println!("    full, read-only and foreign disks: refused");
    }

    /// Runs all cases of bad input.
    pub fn bad_input(&mut self) {
        self.refused_starts();
        let (full, room) =
            (|node: &Node| node.fill_disk(true), |node: &Node| node.fill_disk(false));
        self.refuses("a full disk", "No space left", full, room);
        self.full_disk_of_a_leader();
        self.refuses("a read-only disk", "Read-only", Node::protect_disk, Node::unprotect_disk);
        self.damaged_while_it_runs();
        self.damaged_as_the_owner_dies();
        self.damaged_while_it_is_stopped();
        self.clocks_jump();
    }
}
