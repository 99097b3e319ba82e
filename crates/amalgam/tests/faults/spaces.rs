//! Nodes as processes, each in a network namespace and with a disk of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const LEASE: Duration = Duration::from_secs(3);
pub const ETCD_HOST: &str = "10.77.0.2";
const PATIENCE: Duration = Duration::from_secs(60);
/// What permits to move chunks from another machine.
pub const OPERATOR_TOKEN: &str = "0123456789abcdeffedcba9876543210";
/// Of a disk that is not full.
const DISK_BYTES: u64 = 1 << 30;

pub fn run(words: &str) {
    let mut parts = words.split_whitespace();
    let program = parts.next().expect("a program");
    let output = Command::new(program).args(parts).output().expect("it runs");
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for something; how long it took.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: still not so");
        std::thread::sleep(Duration::from_millis(20));
    }
    begin.elapsed()
}

/// A namespace with one interface at the bridge.
pub struct Space {
    pub name: String,
    pub host: String,
}

impl Space {
    pub fn new(name: &str, host: &str) -> Self {
        run(&format!("ip netns add {name}"));
        run(&format!("ip link add v-{name} type veth peer name eth0 netns {name}"));
        run(&format!("ip link set v-{name} master br0 up"));
        let space = Self { name: name.to_owned(), host: host.to_owned() };
        space.inside(&format!("ip addr add {host}/24 dev eth0"));
        space.inside("ip link set eth0 up");
        space.inside("ip link set lo up");
        space
    }

    pub fn inside(&self, words: &str) {
        run(&format!("ip netns exec {} {words}", self.name));
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Packets to and from another host go nowhere.
    pub fn blind(&self, host: &str, is_blind: bool) {
        let what = if is_blind { "add" } else { "del" };
        self.inside(&format!("ip route {what} blackhole {host}/32"));
    }

    pub fn link(&self, state: &str) {
        run(&format!("ip link set v-{} {state}", self.name));
    }
}

/// A node, running or not.
pub struct Node {
    pub space: Space,
    /// Where it keeps its log, and in a folder of its own, a disk, its backups.
    folder: PathBuf,
    child: Option<Child>,
    /// How often it had joined when its process started, or joined again.
    joins_before: usize,
    /// What its command begins with.
    prefix: Vec<String>,
}

impl Node {
    /// A node that does not run, with an empty disk.
    pub fn new(number: usize, folder: PathBuf) -> Self {
        let space = Space::new(&format!("n{number}"), &format!("10.77.0.{}", 10 + number));
        let node = Self { space, folder, child: None, joins_before: 0, prefix: Vec::new() };
        let disk = node.disk();
        std::fs::create_dir_all(&disk).expect("a folder");
        let disk = disk.display();
        run(&format!("mount -t tmpfs -o size={DISK_BYTES} {} {disk}", node.space.name));
        node
    }

    pub fn address(&self) -> String {
        format!("{}:7911", self.space.host)
    }

    pub fn start(&mut self) {
        let log = self.folder.join(format!("{}.log", self.space.name));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("a file");
        let output = log.try_clone().expect("a file");
        let mut command = self.command("default", &self.space.name);
        self.joins_before = self.joins();
        self.child = Some(command.stdout(output).stderr(log).spawn().expect("it starts"));
    }

    /// Its process, as a node of a cluster.
    fn command(&self, cluster: &str, name: &str) -> Command {
        let mut words = self.prefix.clone();
        words.push(env!("CARGO_BIN_EXE_amalgam").to_owned());
        let mut command = self.space.command(&words[0]);
        command.args(&words[1..]);
        command.args(["cluster", "node", "--etcd", &format!("http://{ETCD_HOST}:2379")]);
        command.args(["--cluster", cluster, "--name", name, "--listen", &self.address()]);
        command.args(["--clients", &format!("{}:11211", self.space.host), "-t", "1"]);
        command.args(["--lease-seconds", &LEASE.as_secs().to_string(), "--engine", "memc3"]);
        command.args(["--chunk-memory", "256M", "--backups", "3", "--backup-space", "512M"]);
        command.arg("--backup-dir");
        command.arg(self.disk());
        // One for each node: a file is empty for a moment while it is written anew.
        let token = self.folder.join(format!("operator-token-{name}"));
        std::fs::write(&token, OPERATOR_TOKEN).expect("a file");
        command.arg("--operator-token-file");
        command.arg(token);
        command
    }

    /// What it says when it refuses to start.
    pub fn complaint(&self, cluster: &str, name: &str) -> String {
        let mut child = self.command(cluster, name);
        let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let begin = Instant::now();
        while child.try_wait().expect("a child").is_none() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        // One that serves would say so for ever.
        let _ = child.kill();
        let output = child.wait_with_output().expect("it ended");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !text.contains("panicked"), "{text}");
        text
    }

    /// Shifts the clocks that its process sees by `seconds`, which may be negative.
    pub fn set_clocks(&mut self, seconds: i64) {
        let [monotonic, boottime] = ["monotonic", "boottime"].map(|of| format!("--{of}={seconds}"));
        self.prefix = vec!["unshare".to_owned(), "--time".to_owned(), monotonic, boottime];
    }

    /// Its own clocks are the machine's again.
    pub fn reset_clocks(&mut self) {
        self.prefix.clear();
    }

    /// Whether its process has clocks of its own.
    pub fn has_clocks(&self) -> bool {
        let child = self.child.as_ref().expect("it runs").id().to_string();
        let [own, its] =
            ["self", &child].map(|of| std::fs::read_link(format!("/proc/{of}/ns/time")));
        own.is_ok() && its.is_ok() && own.ok() != its.ok()
    }

    /// The folder of the node's disk.
    pub fn disk(&self) -> PathBuf {
        self.folder.join(&self.space.name)
    }

    /// Has the disk no room beyond what is used, or has it room again.
    pub fn fill_disk(&self, is_full: bool) {
        let path = self.disk();
        if !is_full {
            return run(&format!("mount -o remount,size={DISK_BYTES} {}", path.display()));
        }
        // The node goes on writing: a size that it has outgrown meanwhile is refused.
        eventually("the disk is full", || {
            let files = std::fs::read_dir(&path).expect("it is there");
            let length = |file: std::io::Result<std::fs::DirEntry>| {
                file.and_then(|file| file.metadata()).map_or(0, |known| known.len())
            };
            // And a part of a segment, as it would be.
            let bytes = files.map(length).sum::<u64>() + (3 << 20);
            let size = format!("remount,size={bytes}");
            let remount = Command::new("mount").args(["-o", &size]).arg(&path).output();
            remount.expect("it runs").status.success()
        });
    }

    /// What it opens from now on it may not write, where it runs and where it will.
    pub fn protect_disk(&self) {
        let disk = self.disk();
        let disk = disk.display();
        let child = self.child.as_ref().expect("it runs").id();
        for of in ["self".to_owned(), child.to_string()] {
            let inside = format!("nsenter --mount=/proc/{of}/ns/mnt");
            run(&format!("{inside} mount --bind {disk} {disk}"));
            run(&format!("{inside} mount -o remount,bind,ro {disk}"));
        }
    }

    /// It may be written when the node is started again.
    pub fn unprotect_disk(&self) {
        run(&format!("umount {}", self.disk().display()));
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        let log = self.folder.join(format!("{}.log", self.space.name));
        std::fs::read_to_string(log).unwrap_or_default()
    }

    pub fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("it runs");
        run(&format!("kill -{name} {}", child.id()));
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    /// It ends by itself, and not as if all were well.
    pub fn ends(&mut self) {
        self.ends_or(|_| false);
    }

    /// It ends by itself, or joins again as a new incarnation.
    pub fn loses_its_lease(&mut self) {
        self.ends_or(|node| node.joins() > node.joins_before + 1);
    }

    fn ends_or(&mut self, is_so: impl Fn(&Self) -> bool) {
        let mut child = self.child.take().expect("it runs");
        let mut status = None;
        eventually("who was cut off stops", || {
            status = child.try_wait().expect("a child");
            status.is_some() || is_so(self)
        });
        match status {
            Some(status) => {
                assert!(!status.success(), "it says that it stopped against its will");
            }
            None => {
                self.child = Some(child);
                self.joins_before = self.joins() - 1;
            }
        }
    }

    /// Starts it unless it runs.
    pub fn start_again(&mut self) {
        if self.child.is_none() {
            self.start();
        }
    }

    /// How often it joined so far.
    fn joins(&self) -> usize {
        self.log().matches("the node has joined").count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        // What is mounted ends with the namespace; this is for the folder to be removed.
        let _ = Command::new("umount").arg(self.disk()).status();
        let _ = Command::new("ip").args(["netns", "del", &self.space.name]).status();
    }
}
