//! `-u`: drops the privileges of root before the server accepts a client. As in memcached, a
//! process of root does not serve without it.

use anyhow::{Context, bail, ensure};
use rustix::process::geteuid;
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use rustix::{process::Gid, process::Uid};

/// Checks that a process of root was told whom to become.
///
/// # Errors
///
/// If it was not; the text says what to do.
pub fn require_user(name: Option<&str>) -> anyhow::Result<()> {
    if geteuid().is_root() && name.is_none_or(str::is_empty) {
        bail!(
            "can't run as root without the -u switch: give -u USER to become that user, or \
             -u root to stay root"
        );
    }
    Ok(())
}

/// Makes this process run as the user `name` if it runs as root; otherwise changes nothing.
///
/// Requires: the process has one thread, because only the calling thread and those it starts later
/// are changed.
///
/// # Errors
///
/// If there is no such user or the system refuses the change.
pub fn become_user(name: &str) -> anyhow::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let users = std::fs::read_to_string("/etc/passwd").context("-u: cannot read /etc/passwd")?;
    let (uid, gid) =
        find(&users, name).with_context(|| format!("-u: there is no user '{name}'"))?;
    set_thread_groups(&[gid]).context("cannot give up the groups of root")?;
    set_thread_gid(gid).context("cannot give up the group of root")?;
    set_thread_uid(uid).context("cannot give up the rights of root")?;
    ensure!(geteuid() == uid, "the system did not change the user");
    Ok(())
}

/// The user and group id of `name` in a list in the format of `/etc/passwd`.
fn find(users: &str, name: &str) -> Option<(Uid, Gid)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    let uid = fields.next()?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some((Uid::from_raw(uid), Gid::from_raw(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nmemcache:x:101:102::/:/bin/false\n";
        assert_eq!(find(users, "memcache"), Some((Uid::from_raw(101), Gid::from_raw(102))));
        assert_eq!(find(users, "mem"), None);
        assert_eq!(find("broken\n", "broken"), None);
    }
}
