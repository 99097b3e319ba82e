//! The systems that are compared, as processes in namespaces.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use amalgam_node::{ClusterClient, Credentials};
use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::chaos::checker::Outcome;
use crate::chaos::clients::{Client, Protocol};
use crate::chaos::load::{KEYS, key_name};
use crate::chaos::network::{Disk, ETCD_HOST, Space, run};

/// How long a cluster may take to serve.
const PATIENCE: Duration = Duration::from_secs(60);
/// Seconds after which a silent member is taken for dead, in all systems.
const LEASE_SECONDS: u64 = 3;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Our store.
    AmalgamStore,
    /// Our cache.
    AmalgamCache,
    /// Redis Cluster.
    Redis,
    /// Redis Cluster whose clients wait for a replica.
    RedisWait,
    /// Hazelcast's maps, which prefer availability, by memcached's protocol.
    Hazelcast,
}

/// The programs that systems run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `amalgam`.
    pub amalgam: PathBuf,
    /// The archive of Hazelcast for Java; None if it is not to run.
    pub hazelcast: Option<PathBuf>,
}

impl System {
    /// All, by name.
    pub const ALL: [(&str, Self); 5] = [
        ("amalgam-store", Self::AmalgamStore),
        ("amalgam-cache", Self::AmalgamCache),
        ("redis-cluster", Self::Redis),
        ("redis-cluster-wait", Self::RedisWait),
        ("hazelcast-ap", Self::Hazelcast),
    ];

    /// Whether it is one of ours.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::AmalgamStore | Self::AmalgamCache)
    }

    /// Members that run from the beginning.
    fn count(self) -> usize {
        if self.is_redis() { 6 } else { 5 }
    }

    fn is_redis(self) -> bool {
        matches!(self, Self::Redis | Self::RedisWait)
    }

    /// What its clients speak.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::AmalgamStore | Self::AmalgamCache | Self::Hazelcast => Protocol::Memcached,
            Self::Redis | Self::RedisWait => Protocol::Redis { waits: self == Self::RedisWait },
        }
    }

    /// How to get what is missing to run it; None if nothing is.
    pub fn missing(self, programs: &Programs) -> Option<&'static str> {
        let (program, advice) = match self {
            Self::AmalgamStore | Self::AmalgamCache => {
                ("etcd", "install etcd (Debian: etcd-server)")
            }
            Self::Redis | Self::RedisWait => {
                ("redis-server", "install Redis (Debian: redis-server)")
            }
            Self::Hazelcast if programs.hazelcast.is_none() => {
                return Some("give --hazelcast the archive that Maven has of it");
            }
            Self::Hazelcast => ("java", "install Java (Debian: default-jre-headless)"),
        };
        Command::new(program).arg("--version").output().is_err().then_some(advice)
    }
}

/// A process with its namespace.
struct Member {
    space: Space,
    disk: Disk,
    child: Option<Child>,
}

/// A system that runs.
pub struct Cluster {
    system: System,
    programs: Programs,
    folder: PathBuf,
    members: Vec<Member>,
    /// The coordinator of ours, at the end of its own namespace.
    etcd: Option<Member>,
}

impl Cluster {
    /// Starts a system and waits until all its members serve. Its logs go into `folder`; the disk
    /// of the first victim can be suspended if that is asked for.
    ///
    /// # Errors
    ///
    /// If it does not serve in time.
    pub fn start(
        system: System,
        programs: &Programs,
        folder: &Path,
        suspends: bool,
    ) -> anyhow::Result<Self> {
        let (programs, folder) = (programs.clone(), folder.to_owned());
        let member = |name: &str, host: &str, suspends| {
            let disk = Disk::new(folder.join(name), suspends)?;
            anyhow::Ok(Member { space: Space::new(name, host)?, disk, child: None })
        };
        let etcd = system.is_ours().then(|| member("etcd", ETCD_HOST, false)).transpose()?;
        let mut members = Vec::new();
        for place in 0..=system.count() {
            let (name, host) = (format!("n{place}"), format!("10.77.0.{}", 10 + place));
            members.push(member(&name, &host, suspends && place == 1)?);
        }
        let mut cluster = Self { system, programs, folder, members, etcd };
        cluster.start_etcd()?;
        (0..system.count()).try_for_each(|place| cluster.start_member(place))?;
        if system.is_redis() {
            std::thread::sleep(Duration::from_secs(1));
            let all: Vec<String> =
                (0..system.count()).map(|place| cluster.address(place).to_string()).collect();
            let all = all.join(" ");
            run(&format!("redis-cli --cluster create {all} --cluster-replicas 1 --cluster-yes"))?;
        }
        cluster.wait_until_served()?;
        Ok(cluster)
    }

    /// Where a member listens for clients.
    fn address(&self, place: usize) -> SocketAddr {
        let port = match self.system {
            System::AmalgamStore | System::AmalgamCache => 11211,
            System::Redis | System::RedisWait => 6379,
            System::Hazelcast => 5701,
        };
        format!("{}:{port}", self.host(place)).parse().expect("an address")
    }

    /// Where all first members listen for clients.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.system.count()).map(|place| self.address(place)).collect()
    }

    /// The host of a member.
    pub fn host(&self, place: usize) -> &str {
        &self.members[place].space.host
    }

    /// The members without the one that joins late.
    pub fn places(&self) -> std::ops::Range<usize> {
        0..self.system.count()
    }

    /// The disk of a member.
    pub fn disk(&self, place: usize) -> &Disk {
        &self.members[place].disk
    }

    /// Starts etcd, if the system needs it.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start_etcd(&mut self) -> anyhow::Result<()> {
        let Some(etcd) = &mut self.etcd else { return Ok(()) };
        let url = format!("http://{ETCD_HOST}:2379");
        let mut command = etcd.space.command("etcd");
        command.arg("--data-dir").arg(etcd.disk.folder.join("data"));
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error"]);
        etcd.child = Some(spawn(command, &self.folder, "etcd")?);
        Ok(())
    }

    /// Starts a member unless it runs.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start_member(&mut self, place: usize) -> anyhow::Result<()> {
        let name = self.members[place].space.name.clone();
        self.start_named(place, &name)
    }

    /// Starts a member with another's name.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start_named(&mut self, place: usize, name: &str) -> anyhow::Result<()> {
        let is_over = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
        let hosts: Vec<String> = self.places().map(|place| self.host(place).to_owned()).collect();
        let Member { space, disk, child } = &mut self.members[place];
        if child.as_mut().is_some_and(|child| !is_over(child)) {
            return Ok(());
        }
        let host = &space.host;
        let command = match self.system {
            System::AmalgamStore | System::AmalgamCache => {
                let mode = if self.system == System::AmalgamStore { "store" } else { "cache" };
                let lease = LEASE_SECONDS.to_string();
                let mut command = space.command(&self.programs.amalgam);
                command.args(["cluster", "node", "--etcd", &format!("http://{ETCD_HOST}:2379")]);
                command.args(["--name", name, "--listen", &format!("{host}:7911")]);
                command.args(["--clients", &format!("{host}:11211"), "-t", "1", "--mode", mode]);
                command.args(["--lease-seconds", &lease, "--backups", "2"]);
                command.args(["--backup-space", "256M", "--backup-dir"]);
                command.arg(disk.folder.join("backups"));
                command
            }
            System::Redis | System::RedisWait => {
                let mut command = space.command("redis-server");
                command.args(["--bind", host, "--port", "6379", "--protected-mode", "no"]);
                command.args(["--cluster-enabled", "yes", "--appendonly", "yes", "--dir"]);
                command.arg(&disk.folder);
                command.args(["--cluster-node-timeout", &(LEASE_SECONDS * 1000).to_string()]);
                command
            }
            System::Hazelcast => {
                let archive = self.programs.hazelcast.as_deref().context("no archive")?;
                let file = self.folder.join(format!("{name}.xml"));
                std::fs::write(&file, hazelcast_configuration(host, &hosts))?;
                let mut command = space.command("java");
                command.args(["-Xmx256m", "-cp"]).arg(archive);
                command.arg(format!("-Dhazelcast.config={}", file.display()));
                command.arg("com.hazelcast.core.server.HazelcastMemberStarter");
                command
            }
        };
        *child = Some(spawn(command, &self.folder, &space.name)?);
        Ok(())
    }

    /// Kills a member.
    pub fn kill(&mut self, place: usize) {
        self.members[place].kill();
    }

    /// Kills etcd.
    pub fn kill_etcd(&mut self) {
        self.etcd.iter_mut().for_each(Member::kill);
    }

    /// Sends a signal to a member.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn signal(&self, place: usize, signal: Signal) -> anyhow::Result<()> {
        self.members[place].signal(signal)
    }

    /// Sends a signal to etcd.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn signal_etcd(&self, signal: Signal) -> anyhow::Result<()> {
        self.etcd.as_ref().context("there is no etcd")?.signal(signal)
    }

    /// Moves all contents of one of our nodes to the others.
    ///
    /// # Errors
    ///
    /// If it refuses.
    pub fn drain(&self, place: usize) -> anyhow::Result<()> {
        let Member { space, .. } = &self.members[place];
        let mut command = space.command(&self.programs.amalgam);
        command.args(["cluster", "drain", "--node", &format!("{}:7911", space.host)]);
        let output = command.output()?;
        if !output.status.success() {
            bail!("drain of {}: {}", space.name, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Ends a member in order.
    ///
    /// # Errors
    ///
    /// If it does not end in time.
    pub fn stop(&mut self, place: usize) -> anyhow::Result<()> {
        self.signal(place, Signal::TERM)?;
        let mut child = self.members[place].child.take().context("it runs")?;
        let begin = Instant::now();
        while child.try_wait()?.is_none() {
            if begin.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                bail!("n{place} does not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until keys all over the key space can be written through each member.
    ///
    /// # Errors
    ///
    /// If they cannot be in time.
    pub fn wait_until_served(&self) -> anyhow::Result<()> {
        let (addresses, begin) = (self.addresses(), Instant::now());
        for (place, address) in addresses.iter().enumerate() {
            let members = if self.system.is_redis() { &addresses } else { &[*address][..] };
            let mut client = Client::new(self.system.protocol(), members, place);
            let mut number = 0;
            while number < 60 {
                let outcome = client.write(&format!("probe-{number}"), 1);
                number = if outcome == Outcome::Stored { number + 1 } else { 0 };
                if begin.elapsed() > PATIENCE {
                    bail!("n{place} does not serve: {}", self.folder.display());
                }
                if outcome != Outcome::Stored {
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
        }
        Ok(())
    }

    /// The owner of each key; None if the system was not asked.
    pub fn owners(&self) -> Option<Vec<usize>> {
        match self.system {
            System::Redis | System::RedisWait => return self.redis_owners(),
            System::Hazelcast => return None,
            System::AmalgamStore | System::AmalgamCache => {}
        }
        let connect = |place: usize| {
            let address = format!("{}:7911", self.host(place));
            ClusterClient::connect(&[address], Credentials::default(), 1 << 20).ok()
        };
        let mut clients = self.places().map(connect).collect::<Option<Vec<_>>>()?;
        let owner = |key| {
            let id = clients[0].place(key_name(key).as_bytes()).ok()?;
            clients.iter_mut().position(|client| matches!(client.holding(id), Ok(Some(_))))
        };
        (0..KEYS).map(owner).collect()
    }

    /// A client of Redis is where it was sent after a read.
    fn redis_owners(&self) -> Option<Vec<usize>> {
        let mut client = Client::new(self.system.protocol(), &self.addresses(), 0);
        let owner = |key| {
            let outcome = client.read(&key_name(key));
            (outcome != Outcome::Failed).then_some(client.gateway)
        };
        (0..KEYS).map(owner).collect()
    }
}

impl Member {
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("it does not run")?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The configuration of a member of Hazelcast on `host` among `hosts`: two copies besides the
/// owner's, a silent member is left out after as long as ours, and parts that were cut off from
/// each other look for each other every 5 s instead of after 5 minutes.
fn hazelcast_configuration(host: &str, hosts: &[String]) -> String {
    let members: String = hosts.iter().map(|host| format!("<member>{host}</member>")).collect();
    let property = |(name, value): &(&str, u64)| {
        format!("<property name=\"hazelcast.{name}\">{value}</property>")
    };
    let properties = [
        ("heartbeat.interval.seconds", 1),
        ("max.no.heartbeat.seconds", LEASE_SECONDS),
        ("merge.first.run.delay.seconds", 5),
        ("merge.next.run.delay.seconds", 5),
    ];
    let properties: String = properties.iter().map(property).collect();
    format!(
        "<hazelcast xmlns=\"http://www.hazelcast.com/schema/config\">
<properties>
{properties}<property name=\"hazelcast.phone.home.enabled\">false</property>
</properties>
<network>
<port auto-increment=\"false\">5701</port>
<join><multicast enabled=\"false\"/><tcp-ip enabled=\"true\">{members}</tcp-ip></join>
<interfaces enabled=\"true\"><interface>{host}</interface></interfaces>
<memcache-protocol enabled=\"true\"/>
</network>
<map name=\"hz_memcache*\"><backup-count>2</backup-count></map>
</hazelcast>
"
    )
}

fn spawn(mut command: Command, folder: &Path, name: &str) -> anyhow::Result<Child> {
    let log = folder.join(format!("{name}.log"));
    let log = File::options().create(true).append(true).open(log)?;
    command.stdout(log.try_clone()?).stderr(log).spawn().context("starting a member")
}
