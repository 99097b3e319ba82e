//! Faults of real processes in network namespaces of their own, with a real etcd: what was
//! acknowledged is there afterwards, and how long it took is printed.
//!
//! It makes namespaces and a bridge, so it runs where nothing else is: `scripts/cluster-test` makes
//! such a place and says so in the environment. Elsewhere it is skipped.

mod bad_input;
mod spaces;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_node::cluster::chunks::{Action, ChunkError, Response};
use amalgam_node::cluster::ids::{ChunkId, IdRange, NodeId};
use amalgam_node::cluster::overlay::Peer;
use amalgam_node::{ClusterClient, Credentials};
use spaces::{ETCD_HOST, LEASE, Node, Space, eventually, run};
use support::temporary;

/// More than there are super peers, so that one node only stores chunks.
const NODES: usize = 6;
const CHUNKS: usize = 60;
const BRIDGE: &str = "10.77.0.1";

/// What was written to a chunk: the last value that was acknowledged, and the last that was tried.
#[derive(Clone, Copy)]
struct Written {
    id: ChunkId,
    acknowledged: u64,
    tried: u64,
}

/// Writes to all chunks, again and again, while it is not told to stop.
struct Writer {
    written: Arc<Mutex<Vec<Written>>>,
    /// When something was acknowledged last, and the longest time without before.
    pause: Arc<Mutex<(Instant, Duration)>>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(home: &str, written: Vec<Written>) -> Self {
        let written = Arc::new(Mutex::new(written));
        let stops = Arc::new(AtomicBool::new(false));
        let pause = Arc::new(Mutex::new((Instant::now(), Duration::ZERO)));
        let (shared, told, home) = (Arc::clone(&written), Arc::clone(&stops), home.to_owned());
        let paused = Arc::clone(&pause);
        let thread = std::thread::spawn(move || {
            let mut client = connect(&home);
            let mut next = 0;
            while !told.load(Ordering::Acquire) {
                let mut puts = Vec::new();
                {
                    let mut written = shared.lock().expect("nobody panicked");
                    for place in 0..16 {
                        let at = (next + place) % written.len();
                        written[at].tried += 1;
                        let value = written[at].tried.to_le_bytes().to_vec();
                        puts.push((at, Action::Put(written[at].id, value)));
                    }
                    next += 16;
                }
                let (places, puts): (Vec<usize>, Vec<Action>) = puts.into_iter().unzip();
                let answers = client.call_all(puts);
                if answers.iter().any(Result::is_ok) {
                    let mut paused = paused.lock().expect("nobody panicked");
                    *paused = (Instant::now(), paused.1.max(paused.0.elapsed()));
                }
                let mut written = shared.lock().expect("nobody panicked");
                for (at, answer) in places.into_iter().zip(answers) {
                    if answer.is_ok() {
                        written[at].acknowledged = written[at].tried;
                    }
                }
            }
        });
        Self { written, pause, stops, thread: Some(thread) }
    }

    /// The longest time without an acknowledgement so far.
    fn pause(&self) -> Duration {
        let (last, longest) = *self.pause.lock().expect("nobody panicked");
        longest.max(last.elapsed())
    }

    fn stop(mut self) -> Vec<Written> {
        self.stops.store(true, Ordering::Release);
        self.thread.take().expect("it was started").join().expect("nobody panicked");
        self.written.lock().expect("nobody panicked").clone()
    }
}

fn connect(address: &str) -> ClusterClient {
    let mut client = None;
    eventually("a node answers", || {
        client = ClusterClient::connect(&[address.to_owned()], "", 1 << 20).ok();
        client.is_some()
    });
    client.expect("it connected")
}

/// The whole of it.
struct Trial {
    folder: PathBuf,
    nodes: Vec<Node>,
    /// Where clients come in while something happens.
    way_in: usize,
    etcd: Child,
    written: Vec<Written>,
    /// Chunks that were created in a scene.
    created: Vec<ChunkId>,
    /// Large ones that were acknowledged.
    stored: Vec<ChunkId>,
    acknowledged: u64,
}

impl Trial {
    fn new(folder: &Path) -> Self {
        for words in [
            "ip link set lo up",
            "ip link add br0 type bridge",
            &format!("ip addr add {BRIDGE}/24 dev br0"),
            "ip link set br0 up",
        ] {
            run(words);
        }
        let space = Space::new("etcd", ETCD_HOST);
        // A disk of its own, as the nodes have: what else writes on the machine's is none of this.
        let data = folder.join("etcd-data");
        std::fs::create_dir_all(&data).expect("a folder");
        run(&format!("mount -t tmpfs -o size=1G etcd {}", data.display()));
        let log = std::fs::File::create(folder.join("etcd.log")).expect("a file");
        let url = format!("http://{ETCD_HOST}:2379");
        let etcd = space
            .command("etcd")
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", "http://127.0.0.1:2380", "--data-dir"])
            .arg(&data)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        let nodes = (0..NODES).map(|number| Node::new(number, folder.to_owned())).collect();
        let mut trial = Self {
            folder: folder.to_owned(),
            nodes,
            way_in: 0,
            etcd,
            written: Vec::new(),
            created: Vec::new(),
            stored: Vec::new(),
            acknowledged: 0,
        };
        trial.nodes.iter_mut().for_each(Node::start);
        trial.is_whole();
        // A third of the chunks with each of the nodes that will have something to bear.
        for number in 2..NODES {
            let mut client = connect(&trial.nodes[number].address());
            let mut ids = Vec::new();
            eventually("chunks are created", || {
                ids.extend(client.create(&0_u64.to_le_bytes()).ok());
                ids.len() == CHUNKS / (NODES - 2)
            });
            let begun = |id| Written { id, acknowledged: 0, tried: 0 };
            trial.written.extend(ids.into_iter().map(begun));
        }
        trial
    }

    /// The super peers.
    fn super_peers(&self) -> Vec<usize> {
        let status = connect(&self.home()).status().expect("it answers");
        let supers = status.members.iter().filter(|(peer, _)| status.supers.contains(peer));
        let place = |address: &String| self.nodes.iter().position(|one| one.address() == *address);
        supers.filter_map(|(_, address)| place(address)).collect()
    }

    fn node_id(&self, place: usize) -> NodeId {
        let status = connect(&self.home()).status().expect("it answers");
        let is_it = |(_, address): &&(Peer, String)| *address == self.nodes[place].address();
        status.members.iter().find(is_it).expect("a member").0.node
    }

    fn home(&self) -> String {
        self.nodes[0].address()
    }

    /// Waits until all nodes are members and all chunks have their backups.
    fn is_whole(&self) {
        eventually("all have their backups", || {
            self.nodes.iter().all(|node| {
                let client = ClusterClient::connect(&[node.address()], "", 0);
                let status = client.and_then(|mut client| client.status());
                status.is_ok_and(|status| {
                    status.reduced == (0, 0) && status.members.len() == NODES && status.ids > 0
                })
            })
        });
    }

    /// How long it takes until the home knows that nodes are gone.
    fn detect(&self, victims: &[usize], begin: Instant) -> Duration {
        let mut home = connect(&self.home());
        let gone: Vec<String> = victims.iter().map(|one| self.nodes[*one].address()).collect();
        eventually("who is gone is no member", || {
            home.status().is_ok_and(|status| {
                status.members.iter().all(|(_, address)| !gone.contains(address))
            })
        });
        begin.elapsed()
    }

    /// Reads every chunk until it is there, and compares.
    fn check(&self, home: &str) {
        let mut client = connect(home);
        for Written { id, acknowledged, tried } in &self.written {
            let mut value = None;
            eventually("a chunk can be read", || match client.call(Action::Get(*id)) {
                Ok(Response::Value(bytes)) => {
                    value = Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
                    true
                }
                answer => {
                    assert!(!matches!(answer, Err(ChunkError::NoChunk)), "{id} is lost");
                    false
                }
            });
            let value = value.expect("it was read");
            assert!((*acknowledged..=*tried).contains(&value), "{id}: {value}, not {acknowledged}");
        }
    }

    /// Has something happen while chunks are written: `fault` returns who is to be taken out,
    /// `after` mends it.
    fn scene(
        &mut self,
        name: &str,
        fault: impl FnOnce(&mut Self) -> Vec<usize>,
        after: impl FnOnce(&mut Self),
    ) {
        let way_in = self.nodes[self.way_in].address();
        let writer = Writer::start(&way_in, std::mem::take(&mut self.written));
        let mut reader = connect(&way_in);
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        let gone = fault(self);
        // What happens before somebody is gone, such as creating chunks, is no part of it.
        let gone_at = Instant::now();
        let detected = (!gone.is_empty()).then(|| self.detect(&gone, gone_at));
        let known = writer.written.lock().expect("nobody panicked").clone();
        for Written { id, .. } in known {
            eventually("a chunk can be read", || reader.get(id).is_ok());
        }
        let readable = if gone.is_empty() { begin } else { gone_at }.elapsed();
        after(self);
        std::thread::sleep(Duration::from_millis(300));
        let pause = writer.pause();
        self.written = writer.stop();
        let begun = |id| Written { id, acknowledged: 0, tried: 0 };
        self.written.extend(self.created.drain(..).map(begun));
        let home = self.home();
        self.check(&home);
        self.is_whole();
        let sum: u64 = self.written.iter().map(|one| one.acknowledged).sum();
        println!(
            "    {name}: detected after {}, readable after {:.1} s, no write for {:.1} s, \
             {sum} writes, 0 lost",
            detected.map_or("-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64())),
            readable.as_secs_f64(),
            pause.as_secs_f64()
        );
        assert!(sum > self.acknowledged, "{name}: nothing was written");
        self.acknowledged = sum;
    }

    fn kill(&mut self, victims: &[usize]) -> Vec<usize> {
        victims.iter().for_each(|one| self.nodes[*one].kill());
        victims.to_vec()
    }

    fn restart(&mut self, victims: &[usize]) {
        victims.iter().for_each(|one| self.nodes[*one].start_again());
    }

    /// Whom a node cannot reach: the other nodes.
    fn blind(&self, victim: usize, is_blind: bool) {
        let others = self.nodes.iter().enumerate().filter(|(number, _)| *number != victim);
        others.for_each(|(_, other)| self.nodes[victim].space.blind(&other.space.host, is_blind));
    }

    /// All processes end at once, and start again.
    fn cold_start(&mut self) {
        let writer = Writer::start(&self.home(), std::mem::take(&mut self.written));
        std::thread::sleep(Duration::from_millis(500));
        let all: Vec<usize> = (0..NODES).collect();
        self.kill(&all);
        let begin = Instant::now();
        self.restart(&all);
        // Its operations go on with the new lives, or fail in time.
        self.written = writer.stop();
        let home = self.home();
        self.check(&home);
        println!("    cold start: readable after {:.1} s, 0 lost", begin.elapsed().as_secs_f64());
        self.is_whole();
    }

    fn faults(&mut self) {
        let none = |_: &mut Self| {};
        let stop = |t: &mut Self| {
            t.nodes[3].signal("STOP");
            vec![3]
        };
        let go_on = |t: &mut Self| {
            t.nodes[3].signal("CONT");
            t.nodes[3].loses_its_lease();
            t.restart(&[3]);
        };
        self.scene("kill -9", |t| t.kill(&[4]), |t| t.restart(&[4]));
        self.scene("stopped past its lease", stop, go_on);
        // Whom clients ask where chunks are is the one that is gone.
        self.way_in = 4;
        self.scene("kill -9 of the clients' home", |t| t.kill(&[4]), |t| t.restart(&[4]));
        self.way_in = 3;
        self.scene("the clients' home stopped", stop, go_on);
        self.way_in = 0;
        self.scene(
            "cut off from etcd",
            |t| {
                t.nodes[4].space.blind(ETCD_HOST, true);
                vec![4]
            },
            |t| {
                t.nodes[4].space.blind(ETCD_HOST, false);
                t.nodes[4].loses_its_lease();
                t.restart(&[4]);
            },
        );
        self.scene(
            "cut off from peers",
            |t| {
                t.blind(3, true);
                std::thread::sleep(Duration::from_secs(2));
                t.blind(3, false);
                Vec::new()
            },
            none,
        );
        self.scene(
            "cut off from both",
            |t| {
                t.nodes[4].space.link("down");
                vec![4]
            },
            |t| {
                t.nodes[4].space.link("up");
                t.nodes[4].loses_its_lease();
                t.restart(&[4]);
            },
        );
        self.scene(
            "a second failure while the first is recovered",
            |t| {
                t.kill(&[4]);
                std::thread::sleep(LEASE);
                t.kill(&[3]);
                Vec::new()
            },
            |t| t.restart(&[3, 4]),
        );
        self.scene(
            "migration during failover",
            |t| {
                let operator_token = spaces::OPERATOR_TOKEN.to_owned();
                let operator = Credentials { operator_token, ..Credentials::default() };
                let mut owner = ClusterClient::connect(&[t.nodes[4].address()], operator, 1 << 20)
                    .expect("an operator connects");
                let create = |_| owner.create(&[0; 8]).expect("it serves");
                t.created = (0..20).map(create).collect();
                t.created.sort_unstable();
                let all = IdRange::starting_at(t.created[0], 64).expect("a range");
                let target = t.node_id(3);
                assert!(owner.migrate(all, target).expect("it answers"), "it begins to move");
                t.kill(&[4])
            },
            |t| t.restart(&[4]),
        );
        let leader = self.super_peers().into_iter().find(|place| *place > 0).expect("one");
        let other = if leader == 4 { 3 } else { 4 };
        self.scene(
            "super peer and peer together",
            |t| t.kill(&[leader, other]),
            |t| t.restart(&[leader, other]),
        );
        self.cold_start();
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
        // It may have ended by itself.
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
        let _ = Command::new("umount").arg(self.folder.join("etcd-data")).status();
        if std::thread::panicking() {
            let etcd = std::fs::read_to_string(self.folder.join("etcd.log")).unwrap_or_default();
            let nodes = self.nodes.iter().map(|node| (node.space.name.as_str(), node.log()));
            for (name, text) in nodes.chain([("etcd", etcd)]) {
                let lines: Vec<&str> = text.lines().collect();
                let last = &lines[lines.len().saturating_sub(15)..];
                println!("--- {name}\n{}", last.join("\n"));
            }
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_whatever_happens() {
    let Ok(rounds) = std::env::var("AMALGAM_FAULT_ROUNDS") else {
        eprintln!("skipped: scripts/cluster-test makes a place where it can run");
        return;
    };
    let rounds: u32 = rounds.parse().expect("AMALGAM_FAULT_ROUNDS is a number");
    let folder = temporary("faults");
    // In a namespace numbers of processes come again, and one that failed left its own.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut trial = Trial::new(&folder);
    trial.bad_input();
    for _ in 0..rounds {
        trial.faults();
    }
    drop(trial);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}
