//! A network of namespaces whose links this process routes, and the disks of members.
//!
//! Every packet between two members passes the router, which drops those of a cut silently and in
//! one direction alone. Clients run at the router and reach every member.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Where etcd listens.
pub const ETCD_HOST: &str = "10.77.0.9";
const ROUTER: &str = "10.77.0.1";
/// Tells the program that it is in namespaces of its own.
const ISOLATED: &str = "AMALGAM_CHAOS_ISOLATED";
/// Priority of the router's rules that drop packets.
const CUT: &str = "100";
/// Size of a disk that is not full, in bytes.
const DISK_BYTES: u64 = 1 << 30;
/// Size of a disk that can be suspended.
const IMAGE_BYTES: u64 = 600 << 20;

/// Runs a command, and returns what it prints.
///
/// # Errors
///
/// If it cannot be started or fails.
pub fn run(words: &str) -> anyhow::Result<String> {
    let mut parts = words.split_whitespace();
    let program = parts.next().context("no command")?;
    let output = Command::new(program).args(parts).output();
    let output = output.with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        let [error, text] = [&output.stderr, &output.stdout].map(|text| {
            let text = String::from_utf8_lossy(text);
            text.trim().chars().take(500).collect::<String>()
        });
        bail!("`{words}`: {error} {text}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes this process the router of an empty network. Outside namespaces of its own it is replaced
/// by itself inside of them, so all that it creates ends with it.
///
/// # Errors
///
/// If the system allows no namespaces.
pub fn isolate() -> anyhow::Result<()> {
    if std::env::var_os(ISOLATED).is_none() {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
        if !rustix::process::getuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["sh", "-c"]);
        command.arg(
            "mount -t tmpfs none /run && mkdir /run/netns && mount -t proc none /proc &&
            exec \"$0\" \"$@\"",
        );
        command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
        let error = command.env(ISOLATED, "1").exec();
        return Err(error).context("starting unshare (Debian: util-linux)");
    }
    run("ip link set lo up").context("install ip (Debian: iproute2)")?;
    run(&format!("ip addr add {ROUTER}/32 dev lo"))?;
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("packets cannot be forwarded")
}

/// Drops packets from one host to another.
///
/// # Errors
///
/// If the router takes no rule.
pub fn cut(from: &str, to: &str) -> anyhow::Result<()> {
    run(&format!("ip rule add from {from} to {to} blackhole pref {CUT}")).map(drop)
}

/// Ends all cuts.
pub fn heal() {
    while run(&format!("ip rule del pref {CUT}")).is_ok() {}
}

/// A namespace with one address.
#[derive(Debug)]
pub struct Space {
    /// Its name.
    pub name: String,
    /// Its address.
    pub host: String,
}

impl Space {
    /// # Errors
    ///
    /// If the system does not create it.
    pub fn new(name: &str, host: &str) -> anyhow::Result<Self> {
        run(&format!("ip netns add {name}"))?;
        let space = Self { name: name.to_owned(), host: host.to_owned() };
        run(&format!("ip link add v-{name} type veth peer name eth0 netns {name}"))?;
        run(&format!("ip link set v-{name} up"))?;
        run(&format!("ip route add {host}/32 dev v-{name} src {ROUTER}"))?;
        for words in [
            format!("addr add {host}/32 dev eth0"),
            "link set lo up".to_owned(),
            "link set eth0 up".to_owned(),
            format!("route add {ROUTER} dev eth0"),
            format!("route add default via {ROUTER} src {host}"),
        ] {
            run(&format!("ip netns exec {name} ip {words}"))?;
        }
        Ok(space)
    }

    /// A program in it, with the process number of the command.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program.as_ref());
        command
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = run(&format!("ip netns del {}", self.name));
        let _ = run(&format!("ip link del v-{}", self.name));
    }
}

/// The file system of one member.
#[derive(Debug)]
pub struct Disk {
    /// Where it is mounted.
    pub folder: PathBuf,
    /// The image of one that can be suspended.
    image: Option<PathBuf>,
}

impl Disk {
    /// An empty disk in memory; one that can be suspended is an image behind a loop device.
    ///
    /// # Errors
    ///
    /// If it cannot be mounted.
    pub fn new(folder: PathBuf, can_be_suspended: bool) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let at = folder.display();
        if !can_be_suspended {
            run(&format!("mount -t tmpfs -o size={DISK_BYTES} chaos {at}"))?;
            return Ok(Self { folder, image: None });
        }
        let image = PathBuf::from(format!(
            "/run/{}.image",
            folder.file_name().map_or_else(|| "disk".into(), |name| name.to_string_lossy(),)
        ));
        std::fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
        run(&format!("mkfs.ext4 -q {}", image.display()))?;
        run(&format!("mount -o loop {} {at}", image.display()))?;
        Ok(Self { folder, image: Some(image) })
    }

    /// Whether writes wait until the disk is resumed.
    ///
    /// # Errors
    ///
    /// If the file system does not allow it.
    pub fn suspend(&self, is_suspended: bool) -> anyhow::Result<()> {
        let option = if is_suspended { "-f" } else { "-u" };
        run(&format!("fsfreeze {option} {}", self.folder.display())).map(drop)
    }

    /// Leaves the disk no room beyond what is used, or gives it room again.
    ///
    /// # Errors
    ///
    /// If it cannot be resized.
    pub fn fill(&self, is_full: bool) -> anyhow::Result<()> {
        let at = self.folder.display();
        let resize = |bytes: u64| run(&format!("mount -o remount,size={bytes} {at}")).map(drop);
        if !is_full {
            return resize(DISK_BYTES);
        }
        // The member goes on writing, and a size that it has outgrown meanwhile is refused.
        (0..50).find_map(|_| resize(self.used().ok()?).ok()).context("the disk cannot be filled")
    }

    /// Bytes in use, by the file system's own count.
    fn used(&self) -> anyhow::Result<u64> {
        let known = rustix::fs::statvfs(&self.folder)?;
        Ok((known.f_blocks - known.f_bfree) * known.f_frsize + (64 << 10))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.image.is_some() {
            let _ = self.suspend(false);
        }
        let _ = run(&format!("umount -l {}", self.folder.display()));
        if let Some(image) = &self.image {
            let _ = std::fs::remove_file(image);
        }
    }
}
